"""The probes, in the order in which they hear of an event."""

from breakfix.examine.compiling import Compiling
from breakfix.examine.finite import Finite
from breakfix.examine.gradients import Optimizers, ZeroGrad
from breakfix.examine.leaks import Leaks
from breakfix.examine.loading import Loading
from breakfix.examine.losses import Losses
from breakfix.examine.memory import Memory
from breakfix.examine.modes import Modes
from breakfix.examine.owners import Owners
from breakfix.examine.precision import HalfPrecision, Scaling
from breakfix.examine.ranks import Ranks
from breakfix.examine.rates import Rates
from breakfix.examine.reading import Reading
from breakfix.examine.timeline import Timeline

PROBES = [
    Timeline, ZeroGrad, Optimizers, Losses, Owners, Finite, Leaks, Scaling, HalfPrecision, Modes, Loading, Reading,
    Rates, Compiling, Ranks, Memory,
]  # fmt: skip
