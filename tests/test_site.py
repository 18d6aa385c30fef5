"""The documentation's site: built offline, every link followed, looked at in a browser."""

import ast
import functools
import html.parser
import http.server
import importlib
import json
import pathlib
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import threading
import urllib.parse
from xml.etree import ElementTree

import pytest

import reproduce
import tasks
import tff_algos
from reproduction import items
from tests.tasks.test_registry import OWN as TASKS
from tests.tff_algos import cases
from tools import diagram, formulas, site_pages
from tools import method_and_task_pages as own

# One worker builds the site, once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]

REPO = pathlib.Path(__file__).resolve().parent.parent
WIDTHS = (390, 1440)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=REPO,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


class Page(html.parser.HTMLParser):
    """What a page links to, loads and names."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loaded, self.ids, self.pictures = [], [], set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids |= {attrs[name] for name in ("id", "name") if attrs.get(name)}
        if tag == "a" and attrs.get("href"):
            self.links.append(attrs["href"])
        if tag in ("img", "script") and attrs.get("src"):
            self.loaded.append(attrs["src"])
        if tag == "link" and attrs.get("rel") not in ("canonical", "alternate"):
            self.loaded.append(attrs["href"])
        if tag == "img":
            self.pictures.append(attrs)


@functools.cache
def read(path):
    return Page(path)


def pages_of(site):
    return [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]


def test_the_site_has_what_it_should(site):
    scoreboard = (site / "papers" / "index.html").read_text()
    assert "not reproduced" in scoreboard
    assert "run_experiment.py" in (site / "index.html").read_text()
    python = (site / "reference" / "python" / "index.html").read_text()
    for name, of in site_pages._CALLS.items():
        assert f'id="{of}"' in python and name in python, name
    for page in (python, scoreboard):
        assert "/site.css" in page
    assert "white-space: normal" in (site / "site.css").read_text()
    index = json.loads((site / "search" / "search_index.json").read_text())
    separator = re.compile(index["config"]["separator"])
    for word in ("build", "from_keras", "load", "run", "client_learning_rate", "adafed"):
        texts = [f"{entry['title']} {entry['text']}" for entry in index["docs"]]
        assert any(word in separator.split(text) for text in texts), word
    assert (site / "search.html").exists() and "search/main.js" in python
    assert "<svg" in (site / "design" / "index.html").read_text()


def test_every_link_leads_somewhere_and_nothing_comes_from_the_network(site):
    wrong = []
    for path in pages_of(site):
        page = read(path)
        for address in page.loaded:
            if urllib.parse.urlsplit(address).netloc:
                wrong.append(f"{path}: loads {address}")
        for address in page.links + page.loaded:
            parts = urllib.parse.urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            place = urllib.parse.unquote(parts.path)
            target = (path.parent / place).resolve() if place else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or site not in target.parents:
                wrong.append(f"{path.relative_to(site)}: {address}")
            elif parts.fragment and target.suffix == ".html":
                if urllib.parse.unquote(parts.fragment) not in read(target).ids:
                    wrong.append(f"{path.relative_to(site)}: no such place: {address}")
    assert not wrong
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", path.read_text()), path


def test_pictures_have_sizes(site):
    pictures = [(path, picture) for path in pages_of(site) for picture in read(path).pictures]
    assert len(pictures) > 50
    assert not [p for p in pictures if not {"width", "height"} <= p[1].keys()]


@pytest.mark.parametrize("name", sorted(cases.OWN))
def test_every_method_has_a_page(name, site):
    text = (site / "methods" / name / "index.html").read_text()
    for part in ("update", "settings", "deviations-from-the-paper", "version-and-history"):
        assert f'id="{part}"' in text
    assert "<math>" in text and "What is logged" in text
    assert f"--algorithm={name}" in text.replace("<span>", "")


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_has_a_page(name, site):
    text = (site / "tasks" / name / "index.html").read_text()
    for part in ("data", "metrics", "settings", "results", "version-and-history"):
        assert f'id="{part}"' in text


PAGES = {
    **{name: (tff_algos.get(name), own.method_page) for name in sorted(cases.OWN)},
    **{name: (tasks.get(name), own.task_page) for name in sorted(TASKS)},
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_is_known_of_problems_and_users_and_nothing_else(name):
    spec, page = PAGES[name]
    text = page(name)
    for title, lines in (("Known problems", spec.known_problems), ("Used for", spec.used_for)):
        section = re.search(rf"^## {title}\n\n(.*?)(?=^## |\Z)", text, re.M | re.S)
        shown = section[1].strip().splitlines() if section else []
        assert all(f"- {own._prose(line)}" in shown for line in lines)
        # Rows of the papers are users, too; a section without a line is left out.
        of_papers = [line for line in shown if line.startswith("- [")]
        assert len(shown) == len(lines) + len(of_papers) and bool(section) == bool(shown)
        assert title == "Used for" or not of_papers


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_are_ones_that_reproduce_takes(name):
    text = PAGES[name][1](name)
    for command in re.findall(r"^    \S+python reproduce\.py (.*?)\n\n", text, re.M | re.S):
        options = reproduce.PARSER.parse(shlex.split(command.replace("\\\n", " ")))
        setup = items.load_item(options.paper, options.item).setups[options.setup]
        assert set(options.rows or ()) <= setup.rows.keys() and not options.folders


def test_a_page_of_a_method_has_its_settings_and_results(site):
    text = (site / "methods" / "adafedadam" / "index.html").read_text()
    assert "--adafedadam_alpha" in text and "reproduced" in text and "curves.png" in text
    text = (site / "methods" / "adafed" / "index.html").read_text()
    assert "--adafed_gamma" in text and "u is the shortest vector" in text


@pytest.mark.parametrize(
    "path", sorted((REPO / "tff_algos" / "methods").glob("[a-z]*.py")), ids=lambda path: path.stem
)
def test_formulas_keep_every_sign(path):
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    parts = [lines for kind, lines in formulas.blocks(docstring) if kind == "formulas"]
    assert parts
    same = str.maketrans("²³⁺ᵀ", "23+T")

    def signs(text):
        return re.sub(r"[\s_^{}]", "", text.translate(same))

    for lines in parts:
        shown = ElementTree.fromstring(formulas.lines_html(lines))
        assert signs("".join(shown.itertext())) == signs("".join(lines))


def test_formulas_have_structure():
    shown = formulas.line_html("client: x_k ← x_k - η_l ∇f(x_k; b)²")
    assert shown.startswith("client: <math>")
    assert "<msub><mi>x</mi><mrow><mi>k</mi></mrow></msub>" in shown
    assert "<msup>" in shown


def test_the_diagram_has_every_box_and_arrow():
    source = 'graph TD\n  a["A & B"]\n  subgraph g ["G"]\n    b["B"]\n    c["C"]\n  end\n'
    drawn = ElementTree.fromstring(diagram.svg(source + "  a --> g\n  b --> c\n"))
    names = ["".join(e.itertext()) for e in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert sorted(names) == ["A & B", "B", "C", "G"]
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}path"))) == 3  # A tip, too.
    with pytest.raises(ValueError, match="not known: a ==> b"):
        diagram.svg(source + "  a ==> b\n")


def test_what_a_script_calls_is_there():
    """Under the name on the page, and it is what the page describes."""
    for name, of in site_pages._CALLS.items():
        package, _, last = name.rpartition(".")
        assert getattr(importlib.import_module(package), last) is pkgutil.resolve_name(of), name


_LOOK = """<!doctype html><title>look</title><pre id="found"></pre><script>
const pages = %s, widths = %s, found = [];
const frame = document.createElement("iframe");
frame.style.height = "900px";
document.body.append(frame);
(async () => {
  for (const width of widths) {
    frame.style.width = width + "px";
    for (const page of pages) {
      await new Promise(loaded => { frame.onload = loaded; frame.src = page; });
      const inside = frame.contentDocument, root = inside.documentElement;
      const loads = frame.contentWindow.performance.getEntriesByType("resource");
      found.push({page, width, shown: frame.contentWindow.innerWidth, wide: root.scrollWidth,
        text: inside.body.innerText.length,
        other: loads.map(e => e.name).filter(n => !n.startsWith(location.origin))});
    }
  }
  document.getElementById("found").textContent = JSON.stringify(found);
  await fetch("/done", {method: "POST", body: JSON.stringify(found)});
})();
</script>"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_page_is_wider_than_the_screen(site, tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed")
    places = ["/" + p.relative_to(site).as_posix() for p in pages_of(site)]
    places.remove("/search.html")
    (site / "look.html").write_text(_LOOK % (json.dumps(places), json.dumps(WIDTHS)))
    done, told = threading.Event(), []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_POST(self):
            told.extend(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()
            done.set()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(site))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with open(tmp_path / "browser.txt", "w") as output:
        process = subprocess.Popen(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                f"--user-data-dir={tmp_path / 'profile'}",
                "--window-size=1600,1000",
                "--remote-debugging-port=0",
                f"http://127.0.0.1:{server.server_port}/look.html",
            ],
            stdout=output,
            stderr=output,
        )
        try:
            finished = done.wait(500)
        finally:
            process.terminate()
            process.wait(30)
            server.shutdown()
            (site / "look.html").unlink()
    assert finished, (tmp_path / "browser.txt").read_text()[-2000:]
    assert len(told) == len(places) * len(WIDTHS)
    assert all(page["shown"] == page["width"] and page["text"] > 100 for page in told)
    assert not [page for page in told if page["wide"] > page["width"]]
    assert not [page for page in told if page["other"]]
