"""Indices in generated kernels, as sums, so that the digits of a number need not be computed from the number again.

A thread's number is divided into digits once. From there on views are sums of digits times strides, and dividing such a
sum mostly means to choose some of its terms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Index:
    """Variables times weights above 0, which are unsigned, and a constant."""

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0

    def __add__(self, other: Index) -> Index:
        weights = dict(self.terms)
        for name, weight in other.terms:
            weights[name] = weights.get(name, 0) + weight
        return Index(tuple(weights.items()), self.constant + other.constant)

    def __mul__(self, factor: int) -> Index:
        terms = [(name, weight * factor) for name, weight in self.terms if factor]
        return Index(tuple(terms), self.constant * factor)

    def __floordiv__(self, by: int) -> Index:
        """Of weights and a constant that are multiples."""
        return Index(tuple((name, weight // by) for name, weight in self.terms), self.constant // by)

    def without(self, name: str) -> Index:
        return Index(tuple(term for term in self.terms if term[0] != name), self.constant)

    def weights(self, name: str) -> list[int]:
        """Of all terms but that of a variable, and the constant."""
        return [self.constant, *(weight for other, weight in self.terms if other != name)]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.terms]

    def __str__(self) -> str:
        terms = [name if weight == 1 else f"{name} * {weight}u" for name, weight in self.terms]
        return " + ".join([*terms, *([f"{self.constant}u"] if self.constant or not terms else [])])


@dataclass
class Indices:
    """The variables of a kernel.

    Args:
        name: makes a variable of that value, or finds it.
    """

    name: Callable[[str], str]
    sizes: dict[str, int] = field(default_factory=dict)
    """One more than a variable is at most."""
    _digits: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """By the name of a remainder: the quotient, what was divided, and by what."""
    _excess: list[tuple[Index, int]] = field(default_factory=list)
    """By how much a sum exceeds the largest value of it that matters."""

    def variable(self, name: str, size: int) -> Index:
        self.sizes[name] = size
        return Index(((name, 1),)) if size > 1 else Index()

    def named(self, text: str, size: int) -> Index:
        return self.variable(self.name(text), size)

    def number_of(self, name: str) -> str:
        """What a variable is the lowest digits of."""
        return self.number_of(self._digits[name][1]) if name in self._digits else name

    def below(self, part: Index, size: int) -> Index:
        """The same sum, of which only what is less than a size matters."""
        self._excess.append((part, max(0, self.most(part) - size + 1)))
        return part

    def most(self, at: Index) -> int:
        found, weights = at.constant + sum(weight * (self.sizes[name] - 1) for name, weight in at.terms), dict(at.terms)
        for part, excess in self._excess:
            times = {weights.get(name, 0) / weight for name, weight in part.terms}
            if len(times) == 1:
                found -= int(times.pop()) * excess
        return found

    def divided(self, at: Index, by: int) -> tuple[Index, Index]:
        """The quotient and the remainder."""
        return self._divided(self.whole(at), by)

    def whole(self, at: Index) -> Index:
        """The same with what was divided in place of its quotient and remainder."""
        weights = dict(at.terms)
        for name, _ in reversed(at.terms):
            quotient, number, by = self._digits.get(name, ("", "", 0))
            if quotient and name in weights and weights.get(quotient) == (weight := weights[name]) * by:
                del weights[name], weights[quotient]
                weights[number] = weights.get(number, 0) + weight
        return Index(tuple(weights.items()), at.constant)

    def _divided(self, at: Index, by: int) -> tuple[Index, Index]:
        if by == 1:
            return at, Index()
        over = Index(tuple((name, weight // by) for name, weight in at.terms if weight % by == 0), at.constant // by)
        rest = Index(tuple((name, weight) for name, weight in at.terms if weight % by), at.constant % by)
        if self.most(rest) < by:
            return over, rest
        for name, weight in rest.terms:
            if by % weight == 0 and self.sizes[name] > by // weight:
                high, low = self._split(name, by // weight)
                more, rest = self._divided(rest.without(name) + low * weight, by)
                return over + high + more, rest
        single = self.named(str(rest), self.most(rest) + 1)
        high, low = self._split(single.names[0], by)
        return over + high, low

    def _split(self, name: str, by: int) -> tuple[Index, Index]:
        size = self.sizes[name]
        high, low = self.named(f"{name} / {by}u", -(-size // by)), self.named(f"{name} % {by}u", min(by, size))
        for one in low.names:
            self._digits[one] = high.names[0], name, by
        return high, low
