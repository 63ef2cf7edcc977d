"""Every error that framefuse raises, and its exit code on the command line.

FramefuseError                 1  base of all; `.remedy` says what to do, `.stage` where it happened
|-- UsageError                 2  an option or argument is wrong (also a ValueError)
|   `-- ConfigError            2  a configuration file is wrong
|-- CapabilityError            3  this machine or installation lacks what was requested
|-- QualityError               4  an accuracy or service-level gate failed
|-- RequestError               1  a request was refused, or its answer would come too late
|   |-- QueueFullError         1  too many requests wait already
|   `-- DeadlineError          1  its deadline cannot be met
|-- SourceError                1  a source cannot be opened or read
|   |-- DecodeError            1  its data is damaged or of an unknown format
|   |-- StreamError            1  a live stream could not be reached, or was lost and given up
|   `-- AuthenticationError    1  a login was refused (never retried)
|-- ModelError                 1  a model file cannot be used
|   `-- CardError              1  a fact about the model is unknown; the message names the key to add
|-- EngineError                1  an engine failed to build or to run
|   |-- NonFiniteError         1  the model's output contains NaN or infinity
|   |-- HostMemoryError        1  not enough host memory
|   |-- GpuMemoryError         1  not enough GPU memory
|   `-- GpuLostError           1  the GPU is unusable in this process: every later call would fail too
`-- SinkError                  1  a result could not be written; what was written before is complete
"""


class FramefuseError(Exception):
    """Base of all errors of framefuse.

    Args:
        message: what is wrong, including the wrong value.
        remedy: what the user can do about it, in one sentence.

    Attributes:
        stage: name of the pipeline stage in which the error was raised, set once by the pipeline.
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
    """A device, engine or package that was requested explicitly is not available."""

    exit_code = 3


class QualityError(FramefuseError):
    """A measured accuracy or service level is below the required one."""

    exit_code = 4


class RequestError(FramefuseError):
    """A request to a `Batcher` was refused, or dropped before it ran."""


class QueueFullError(RequestError):
    """Too many requests, or too many of one source, are waiting already."""


class DeadlineError(RequestError):
    """The deadline of a request cannot be met; the message says why."""


class SourceError(FramefuseError):
    """A source cannot be opened or read."""


class DecodeError(SourceError):
    """The data of a source is damaged, or of a format that cannot be decoded."""


class StreamError(SourceError):
    """A live stream could not be reached, or was lost and given up."""


class AuthenticationError(SourceError):
    """A server refused the login."""


class ModelError(FramefuseError):
    """A model file is missing, damaged, or of an unknown kind."""


class CardError(ModelError):
    """A fact that is needed to use the model is unknown."""


class EngineError(FramefuseError):
    """An engine failed to load, build or run a model."""


class NonFiniteError(EngineError):
    """The model's output contains NaN or infinity."""


class HostMemoryError(EngineError):
    """There is not enough host memory; the message names the sizes."""


class GpuMemoryError(EngineError):
    """There is not enough GPU memory; the message names the sizes."""


class GpuLostError(EngineError):
    """A CUDA error after which the GPU is unusable in this process. Finished results are kept."""


class SinkError(FramefuseError):
    """A result could not be written; everything written before it is complete."""
