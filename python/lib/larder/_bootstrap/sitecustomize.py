# Python runs this as it starts, if `python -m larder` put its folder on PYTHONPATH. It has Larder
# take the place of PyTorch's allocator right after the program has imported torch, and costs next
# to nothing if it never does.
#
# Any Python that the program starts comes by here, also a very old one, so this file keeps to what
# all of them can read and does nothing where it has no business.
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class _TorchFinder(object):
    """Finds torch as everybody does, and adds the installation to its loading."""

    def __init__(self):
        self._is_busy = False

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self._is_busy:
            return None
        import importlib.util

        self._is_busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_busy = False
        loader = getattr(spec, "loader", None)
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        load = loader.exec_module

        def exec_module(module):
            # The loader is left as it was found, for whoever looks at it.
            loader.__dict__.pop("exec_module", None)
            load(module)
            _install()
            if self in sys.meta_path:
                sys.meta_path.remove(self)

        loader.exec_module = exec_module
        return spec


def _install():
    try:
        _larder().torch._install_in_child()
    except Exception as error:
        _give_up(error)


class _Hidden(Exception):
    """Something else has the package's name."""


def _larder():
    """The package: as it is installed, or else the one that this file is part of."""
    place = os.path.dirname(os.path.dirname(_FOLDER))
    found = _found()
    if found is not None and not os.path.isdir(os.path.join(os.path.dirname(found), "_bootstrap")):
        raise _Hidden("{} hides the package larder: give it another name".format(found))
    if found is not None:
        import larder.torch
    else:
        sys.path.append(place)
        try:
            import larder.torch
        finally:
            sys.path.remove(place)
    return larder


def _found():
    """The file that has the package's name here; it is looked for and not run, for it may be the
    program's.
    """
    import importlib.util

    try:
        return importlib.util.find_spec("larder").origin
    except (AttributeError, ValueError):
        return getattr(sys.modules.get("larder"), "__file__", None)


def _give_up(error):
    """Without Larder the program does not go on: it asked for it."""
    import threading

    kind = type(error)
    is_ours = kind is _Hidden or kind.__module__ == "larder.errors"
    sys.stderr.write(
        "larder: {}\n".format(error if is_ours else "{}: {}".format(kind.__name__, error))
    )
    sys.stderr.flush()
    # As `python -m larder` has it: what was asked for cannot be, or else the machine is in the way.
    code = 2 if kind.__name__ == "SettingsError" else 1
    if threading.current_thread() is not threading.main_thread():
        # An exception would end this thread alone.
        os._exit(code)
    raise SystemExit(code)


def _chain():
    """Runs the sitecustomize that stands behind this one, as if this one were not there."""
    # What looks for modules on the path is here already, and so is what makes them; importing these
    # by their names brings much else, and this comes before every program.
    finders = [
        finder for finder in sys.meta_path if getattr(finder, "__name__", "") == "PathFinder"
    ]
    spec = finders[0].find_spec("sitecustomize", sys.path) if finders else None
    if spec is None or spec.loader is None:
        # So it is told to `site`, which thinks nothing of it.
        raise ImportError("there is no sitecustomize", name="sitecustomize")
    module = sys.modules["_frozen_importlib"].module_from_spec(spec)
    ours = sys.modules.get("sitecustomize")
    sys.modules["sitecustomize"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules["sitecustomize"] = ours
        raise


# The program's own search path is what it would be without us.
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _FOLDER]
if sys.version_info >= (3, 10):
    if os.environ.get("LARDER_INSTALL") == "1":
        sys.meta_path.insert(0, _TorchFinder())
    _chain()
