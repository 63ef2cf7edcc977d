"""Every error framefuse raises, and the exit code that the command line gives it.

FramefuseError                 1  anything below; `.remedy` says what to do, `.stage` where it happened
|-- UsageError                 2  an option or argument is wrong (also a ValueError)
|   `-- ConfigError            2  a configuration file is wrong
|-- CapabilityError            3  this machine or installation lacks what was asked for
|-- QualityError               4  an accuracy or service-level gate failed
|-- SourceError                1  a source cannot be opened or read
|   |-- DecodeError            1  its bytes are damaged or in no known format
|   |-- StreamError            1  a live stream could not be reached, or was lost for good
|   `-- AuthenticationError    1  a login was refused (never retried)
|-- ModelError                 1  a model file cannot be used
|   `-- CardError              1  what the model means is unknown: the message names the key to add
|-- EngineError                1  an engine failed to build or to run
|   |-- NonFiniteError         1  the model put out NaN or infinity
|   |-- HostMemoryError        1  this machine has not enough memory
|   |-- GpuMemoryError         1  the GPU has not enough memory
|   `-- GpuLostError           1  the GPU is lost to this process: every later call would fail too
`-- SinkError                  1  a result could not be written; what was written before is complete
"""

from __future__ import annotations


class FramefuseError(Exception):
    """Base of all errors of framefuse.

    Args:
        message: what was wrong, with the value that was wrong.
        remedy: what the reader can do about it, one sentence.

    Attributes:
        stage: name of the pipeline stage in which the error surfaced, set once by the pipeline.
    """

    exit_code = 1

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.stage: str | None = None

    def __str__(self) -> str:
        where = f"[{self.stage}] " if self.stage else ""
        return f"{where}{self.message}" + (f"\n  -> {self.remedy}" if self.remedy else "")


class UsageError(FramefuseError, ValueError):
    """An option or argument has a wrong value."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration file has an unknown key or a wrong value."""


class CapabilityError(FramefuseError):
    """A device, engine or package that was asked for explicitly is missing here."""

    exit_code = 3


class QualityError(FramefuseError):
    """A measured accuracy or service level is below what was demanded."""

    exit_code = 4


class SourceError(FramefuseError):
    """A source cannot be opened or read."""


class DecodeError(SourceError):
    """Bytes of a source are damaged, or in no format that can be decoded."""


class StreamError(SourceError):
    """A live stream could not be reached, or was lost and did not come back."""


class AuthenticationError(SourceError):
    """A server refused the login."""


class ModelError(FramefuseError):
    """A model file is missing, damaged, or of a kind that framefuse does not know."""


class CardError(ModelError):
    """The model does not say something that must be known to use it."""


class EngineError(FramefuseError):
    """An engine failed to load, build or run a model."""


class NonFiniteError(EngineError):
    """The model's output contains NaN or infinity."""


class HostMemoryError(EngineError):
    """This machine has not enough memory; the message names the sizes."""


class GpuMemoryError(EngineError):
    """The GPU has not enough memory; the message names the sizes."""


class GpuLostError(EngineError):
    """A CUDA error after which nothing works on the GPU in this process. What was finished before stays."""


class SinkError(FramefuseError):
    """A result could not be written; everything written before it is complete."""
