"""The names that `import osae` offers."""

import ast
import importlib
import subprocess
import sys
from textwrap import dedent

import osae
from osae.studies.compare import compare


def test_every_public_name_is_there():
    for name in osae.__all__:
        assert getattr(osae, name) is not None, name
    wanted = "compare evaluate order stitch convert load fit harvest recipe world_recipe Recipe Task SAE"
    wanted += " SAEConfig Code SparseWorld PCAWorld ForestWorld read_results stability orderedness"
    assert set(wanted.split()) <= set(dir(osae))


def test_the_lines_that_help_shows_are_python_and_name_what_there_is():
    assert osae.__doc__ is not None
    shown = [line for line in osae.__doc__.splitlines() if line.startswith("    ")]
    calls = [
        node.func for node in ast.walk(ast.parse(dedent("\n".join(shown)))) if isinstance(node, ast.Call)
    ]
    assert len(calls) == len(shown) - 1  # one line imports osae
    assert {call.attr for call in calls if isinstance(call, ast.Attribute)} <= set(osae.__all__)


def test_modules_do_not_shadow_functions():
    for name in ("compare", "evaluate", "order", "stitch", "convert"):
        module = importlib.import_module(f"osae.studies.{name}")
        assert getattr(osae, name) is getattr(module, name)
        assert callable(getattr(osae, name))
    for name in ("osae.data.harvest", "osae.recipes", "osae.results", "osae.interop"):
        importlib.import_module(name)
    assert callable(osae.harvest)
    assert callable(osae.load)
    assert osae.compare is compare
    assert osae.read_results is importlib.import_module("osae.results").read


def run(*words):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)


def test_python_m_osae_is_the_command_line():
    done = run("-m", "osae", "--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"osae {osae.__version__}"


def test_importing_osae_results_or_measures_needs_no_torch():
    modules = "osae.measures, osae.results, osae.progress"
    code = f"import sys, osae, {modules}; sys.exit('torch' in sys.modules)"
    assert run("-c", code).returncode == 0
