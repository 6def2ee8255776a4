"""tests/run.sh looks at every stage's name before it runs the first stage."""
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("run.sh")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("stages", [["units"], ["lint", "units"], ["lint unit", "units"], ["*"]])
def test_a_wrong_stage_stops_everything(stages):
    done = subprocess.run(["bash", str(SCRIPT), *stages], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "== " not in done.stdout
    assert done.stderr.endswith("there are: install lint pull unit kernels notebooks wheel browser book\n")
    assert done.stderr.count("\n") == 1
