"""A dry run: a PyTorch program runs where there is no GPU, and what its allocator was asked for is
recorded as on a card.

    python -m larder.dryrun --card H100 train.py

CUDA's libraries are answered by a simulated card (`liblarder_dryrun.so`), kernels do nothing, and
the allocator is the one in the installed PyTorch. `larder.dryrun.options` has what can be asked
for; `larder.dryrun.inside` runs in the program's process; `larder.dryrun.page` says what came of
it.
"""

from __future__ import annotations

__all__: list[str] = []
