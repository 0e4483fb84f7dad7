#!/usr/bin/env python3
"""Opens pages in headless Chromium, operates their controls and reports what does not work: check.py MT [FOLDER]

Trains two small runs and opens the page of one, the page that compares them, and the page of explained translations, each at
the width of a desktop and of a phone. Screenshots go to FOLDER.
Needs chromium (Debian: apt-get install chromium).
"""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ERRORS = """window.errors = []; addEventListener("error", event => errors.push(event.message));
addEventListener("unhandledrejection", event => errors.push(String(event.reason)));
for (const name of ["error", "warn"]) console[name] = (...words) => errors.push(words.join(" "));"""


# Windows cannot be as narrow as a phone, but frames can.
FRAME = """<!doctype html><style>body {{ margin: 0 }}</style><iframe src="{page}" style="width: {width}px; height: 6000px; border: 0"></iframe>
<script>addEventListener("message", event => document.documentElement.dataset.checks = event.data);</script>"""


def chromium(page, width, *more):
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        sys.exit("check: chromium is missing; on Debian: apt-get install chromium")
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=3000",
               f"--window-size={width},6000", *more, page.as_uri()]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    except subprocess.TimeoutExpired:
        sys.exit(f"check: {page.name} was not ready after 120 s")
    except subprocess.CalledProcessError as error:
        sys.exit(f"check: {page.name}: {program} ended with {error.returncode}: {error.stderr[-2000:]}")


def allowed(page, *scripts):
    """The page, whose policy also lets these scripts run, by their hashes as it does its own."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    policy = "script-src " + "".join(f"'sha256-{digest}' " for digest in hashes)
    if page.count("script-src ") != 1:
        sys.exit("check: the page has no policy, or more than one")
    return page.replace("script-src ", policy)


def main():
    mt, pictures = sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for run, rate in (("a", "0.002"), ("b", "0.001")):
            subprocess.run([mt, "train", "-q", "--config", "configs/quickstart.toml", "--run-dir", str(folder / run), "--set",
                            "train.max_updates=120", "--set", "train.log_every=5", "--set", "valid.every=20", "--set",
                            'data.monitor=[{ name = "test", source = "test.en", target = "test.de" }]', "--set",
                            "train.schedule.kind=constant", "--set", f"train.schedule.learning_rate={rate}"], check=True)
        subprocess.run([mt, "report", str(folder / "a"), str(folder / "b"), "--output", str(folder / "both.html")], check=True,
                       stdout=subprocess.DEVNULL)
        subprocess.run([mt, "translate", "-q", "--model", str(folder / "b"), "--attention", str(folder / "attention.html"),
                        "The old man reads a book.", "Where is the dog?"], check=True, stdout=subprocess.DEVNULL)
        pages = (("one", folder / "a" / "report.html", "report.js"), ("both", folder / "both.html", "report.js"),
                 ("attention", folder / "attention.html", "attention.js"))
        for name, path, script in pages:
            page = path.read_text(encoding="utf-8")
            checked = folder / f"checked-{name}.html"
            script = "".join((HERE / part).read_text(encoding="utf-8") for part in ("common.js", script))
            page = allowed(page, ERRORS, script)
            page = page.replace("<style>", f"<script>{ERRORS}</script><style>", 1)
            checked.write_text(page.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
            for width in (1200, 390):
                frame = folder / f"frame-{name}.html"
                frame.write_text(FRAME.format(page=checked.as_uri(), width=width), encoding="utf-8")
                found = re.search(r'data-checks="([^"]*)"', chromium(frame, 1200, "--dump-dom"))
                failures = json.loads(html.unescape(found.group(1))) if found else ["the script did not come to its end"]
                failed |= bool(failures)
                print(f"{name}, {width} pixels: {'; '.join(failures) or 'all controls work'}")
                if pictures:
                    pictures.mkdir(parents=True, exist_ok=True)
                    frame.write_text(FRAME.format(page=path.as_uri(), width=width), encoding="utf-8")
                    chromium(frame, width, f"--screenshot={pictures.resolve() / f'{name}-{width}.png'}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
