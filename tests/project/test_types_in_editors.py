"""What an editor says of programs, by the checker that many editors run: examples are clean, wrong calls are not."""

import json
import subprocess
import sys
from pathlib import Path

from repository import ROOT

import loopwright

WRONG = """from loopwright import Context, http

async def main() -> str:
    ctx = Context()
    await ctx.generat()
    await ctx.generate(max_token=5)
    await ctx.generate(max_tokens="5")
    await http.get("http://a.example/", timeout=3)
    ctx.user(5)
    turn = ctx.generate()
    return turn.text
"""

EXAMPLES = ("programs", "src/loopwright/cli/templates", "src/loopwright/bench/techniques/programs")


def test_examples_and_templates_are_clean_and_each_wrong_call_is_reported(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    settings = {
        "include": [*(str(ROOT / folder) for folder in EXAMPLES), str(tmp_path)],
        "extraPaths": [str(ROOT / "src")],
        "pythonVersion": "3.11",
        "typeCheckingMode": "standard",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [str(Path(sys.executable).parent / "basedpyright"), "-p", str(tmp_path), "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] > 12
    found = {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in report["generalDiagnostics"]}
    assert found == {("wrong.py", line) for line in (5, 6, 7, 8, 9, 11)}


def test_the_package_says_that_it_has_types() -> None:
    assert (Path(loopwright.__file__).parent / "py.typed").exists()
    assert "py.typed" in (ROOT / "pyproject.toml").read_text("utf-8")
