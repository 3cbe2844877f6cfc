"""REINFORCE on seven logits: the lesson needs nothing of the package, its interactive figure needs
nothing but a browser, and both compute the same."""
import ast
import itertools
import json
import re
from pathlib import Path

import nbformat
import pytest
import torch
from browser import find_chromium, laboratory, launch, settled
from torch.testing import assert_close

ROOT = Path(__file__).parents[1]
LESSON = ROOT/"nbs"/"method"/"01_seven_logits.ipynb"
FIGURE = ROOT/"nbs"/"method"/"seven_logits.html"
CELLS = nbformat.read(LESSON, as_version=4).cells
# the sentences that the lesson quotes from section 3.3, as the paper's LaTeX source has them
SOURCE = r"""
The goal of training is to minimize the negative expected reward:
which is based on the observation that the gradient of a non-differentiable expected reward can be
computed as follows:
In practice, the gradient can be approximated using a single Monte-Carlo sample
$\mathbf{a}^s=(a^{s}_{1}, a^{s}_{2}, \ldots, a^{s}_{n})$ from $p_{\theta}$:
we need to estimate a baseline reward $b$ to diminish the variance of gradients. Here, the
\textit{self-critical}~\cite{Rennie2016} strategy is used to estimate $b$. In brief, the reward
obtained by current model under inferencing used at test stage, denoted as $r(\hat{\mathbf{a}})$, is
treated as the baseline reward.
"""
SETS = torch.tensor(list(itertools.product((0.0, 1.0), repeat=7)), dtype=torch.float64)
WORTH = torch.tensor([-0.3, -0.3, 1.0, -0.3, -0.3, 1.0, -0.3], dtype=torch.float64)
START = [0.9, 0.4, -0.8, 0.2, -0.5, -0.3, 0.6]


def test_the_lesson_imports_nothing_of_the_package():
    tree = ast.parse("\n".join(cell.source for cell in CELLS if cell.cell_type == "code"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
             for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= {
        "IPython", "itertools", "math", "matplotlib", "torch"}


@pytest.mark.parametrize("name", ["01_seven_logits", "17_today"])
def test_quotations_are_the_paper_s_words(name):
    plain = lambda text: re.sub(r"\s+", " ", re.sub(r"\\textit\{(.*?)\}", r"\1", re.sub(
        r"~\\cite\{\w+\}", "", text))).replace("*", "")
    cells = nbformat.read(ROOT/"nbs"/"method"/f"{name}.ipynb", as_version=4).cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    quoted = re.findall(r'^> "(.+?)" \(', prose, re.M)
    assert quoted
    for part in (part for quotation in quoted for part in plain(quotation).split(" … ")):
        # the lesson leaves out the sentence between two parts
        assert part.rstrip(".") in plain(SOURCE)


def stored_figure() -> str:
    "The figure as the notebook's output has it."
    return next(output.data["text/html"] for cell in CELLS if cell.cell_type == "code"
                for output in cell.outputs if "text/html" in output.get("data", {}))


def test_the_notebook_shows_the_figure_of_the_file():
    page = FIGURE.read_text(encoding="utf-8")
    assert stored_figure() == page.partition("<body>")[2].partition("</body>")[0], (
        "run the last code cell of method/01_seven_logits again")


def test_the_figure_needs_no_network_and_no_other_file():
    page = FIGURE.read_text(encoding="utf-8")
    assert not re.search(r"https?:|\bsrc=|<link|@import|\bfetch\(|XMLHttpRequest|import\(", page)
    assert not [line for line in page.splitlines() if len(line) > 100]


@pytest.fixture(scope="module")
def browser():
    "A Chromium without a window."
    pytest.importorskip("playwright")
    find_chromium()
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture
def page(browser, tmp_path):
    "The figure alone in a folder, opened as a file."
    alone = tmp_path/"figure.html"
    alone.write_bytes(FIGURE.read_bytes())
    page, wrong = browser.new_page(viewport={"width": 1300, "height": 900}), []
    page.on("pageerror", lambda error: wrong.append(error))
    page.on("requestfailed", lambda request: wrong.append(request.url))
    page.goto(alone.as_uri())
    yield page
    page.close()
    assert not wrong


def numbers(page, expression: str, *arguments):
    "What JavaScript computes with the figure's functions."
    return page.evaluate(
        f"arguments => (({expression})(window.sevenLogits, ...arguments))", list(arguments))


def probability(logits, picks):  # (7,), (..., 7) -> (...,)
    return torch.where(picks > 0, logits.sigmoid(), 1 - logits.sigmoid()).prod(-1)


def in_pytorch(logits, kind, offset, samples) -> dict:
    "Exact gradient, estimate and variance, by autograd and by listing all outcomes."
    z = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    rewards, p = SETS @ WORTH + offset, probability(z, SETS)
    exact, = torch.autograd.grad((p * rewards).sum(), z, retain_graph=True)
    scores = torch.stack([torch.autograd.grad(each.log(), z, retain_graph=True)[0] for each in p])
    p, power = p.detach(), scores.square().sum(1)
    constant = {"none": 0.0, "greedy": (z.detach() > 0).double() @ WORTH + offset,
                "best": (p * power) @ rewards / (p @ power)}

    picks = torch.tensor(samples, dtype=torch.float64)
    earned, count = picks @ WORTH + offset, len(samples)
    others = (earned.sum() - earned) / (count - 1)
    base = others if kind == "others" else constant[kind]
    loss = -((earned - base) * probability(z, picks).log()).mean()
    estimate = -torch.autograd.grad(loss, z)[0]

    if kind == "others":  # all pairs of two samples
        both = (rewards[:, None] - rewards)[..., None] * (scores[:, None] - scores) / 2
        count, spread = 2, (both - exact).square().sum(-1)
        variance = (p[:, None] * p * spread).sum()
    else:
        found = (rewards - constant[kind])[:, None] * scores
        variance = p @ (found - exact).square().sum(1) / count
    return {"exact": exact, "estimate": estimate, "variance": variance, "count": count,
            "expected": (p * rewards).sum()}


@pytest.mark.parametrize("logits, kind, offset, count", [
    (START, "none", 2.0, 4),
    ([0.0, 1.5, -2.0, 0.3, 4.0, -0.7, -3.1], "greedy", -1.5, 1),
    ([-1.2, 0.1, 2.2, -0.4, -2.5, 1.9, 0.8], "others", 5.5, 8),
    ([0.5, -0.5, 0.25, 1.0, -1.0, 3.0, -0.125], "best", 0.0, 3),
])
def test_gradients_in_the_browser_are_those_of_pytorch(page, logits, kind, offset, count):
    found = numbers(page, """(s, logits, kind, offset, count) => {
        const samples = s.draw(logits, count, s.generator(7));
        return { samples, exact: s.exactGradient(logits, offset),
          estimate: s.estimate(kind, logits, samples, offset),
          printed: s.estimate(kind, logits, samples, offset, true),
          variance: s.variance(kind, logits, kind === "others" ? 2 : count, offset),
          expected: s.expectedReward(logits, offset) }; }""", logits, kind, offset, count)
    wanted = in_pytorch(logits, kind, offset, found["samples"])
    for name in ("exact", "estimate", "variance", "expected"):
        assert_close(torch.tensor(found[name], dtype=torch.float64), wanted[name].detach(),
                     atol=1e-9, rtol=1e-9)
    assert found["printed"] == [-each for each in found["estimate"]]


def test_samples_follow_their_probability_and_a_seed_fixes_them(page):
    drawn = "(s, seed, count) => s.draw(s.START, count, s.generator(seed))"
    one = numbers(page, drawn, 3, 20_000)
    assert one == numbers(page, drawn, 3, 20_000) != numbers(page, drawn, 4, 20_000)
    share = torch.tensor(one, dtype=torch.float64).mean(0)
    assert_close(share, torch.tensor(START, dtype=torch.float64).sigmoid(), atol=0.015, rtol=0)
    assert numbers(page, "s => [s.SETS, s.WORTH, s.START]") == [
        SETS.tolist(), WORTH.tolist(), START]


def values(page, name: str) -> list[float]:
    "The numbers that the drawing carries: p, exact, estimate, sampled."
    return [float(each.get_attribute(f"data-{name}"))
            for each in page.locator(f"[data-{name}]").all()]


def expected(page) -> float:
    "The expected reward that is shown."
    return float(page.locator("[data-part=expected]").inner_text().replace("−", "-"))


def press(page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def test_buttons_change_what_is_shown(page):
    first = values(page, "p")
    assert_close(first, [1.0, *torch.tensor(START, dtype=torch.float64).sigmoid().tolist()])
    assert_close(values(page, "exact"), numbers(page, "s => s.exactGradient(s.START, 2)"))
    before = values(page, "estimate"), values(page, "sampled")
    press(page, "sample")
    assert (values(page, "estimate"), values(page, "sampled")) != before
    assert values(page, "p") == first  # sampling alone changes no logit

    moved = torch.tensor(START, dtype=torch.float64) + 0.5 * torch.tensor(
        values(page, "estimate"), dtype=torch.float64)
    press(page, "step")
    assert_close(values(page, "p")[1:], moved.sigmoid().tolist())
    assert "Step 1." in page.locator(".status").inner_text()

    page.locator("[data-set=kind]").select_option("others")
    press(page, "run")
    settled(page, lambda: expected(page), lambda reward: reward > 0.8)
    press(page, "pause")
    press(page, "reset")
    assert values(page, "p") == first and "Step 0." in page.locator(".status").inner_text()
    assert "leave-one-out" in page.locator("[data-panel=curve]").inner_text()  # the earlier curve


def test_with_the_printed_sign_the_reward_falls(page):
    page.get_by_label("the paper's printed sign").check()
    page.locator("[data-set=kind]").select_option("best")
    for _ in range(30): press(page, "step")
    assert expected(page) < -0.5
    assert "against what it earned" in page.locator(".status").inner_text()


def test_the_mean_of_the_others_needs_another(page):
    page.locator("[data-set=count]").fill("1")
    assert page.locator("[data-sample]").count() == 1
    assert page.locator("[data-variance=others]").count() == 0
    page.locator("[data-set=kind]").select_option("others")
    assert page.locator("[data-sample]").count() == 2
    page.locator("[data-set=count]").fill("1")
    assert page.locator("[data-sample]").count() == 2
    assert torch.tensor(values(page, "estimate")).isfinite().all()


def test_it_can_be_used_with_the_keyboard(page):
    page.get_by_role("button", name="step", exact=True).focus()
    page.keyboard.press("Enter")
    assert "Step 1." in page.locator(".status").inner_text()
    page.locator("[data-sample='2']").focus()
    page.keyboard.press("Enter")
    assert "Sample 3" in page.locator(".status").inner_text()
    assert page.locator("[data-sample='2']").get_attribute("aria-pressed") == "true"
    page.locator("[data-set=offset]").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("[data-of=offset]").inner_text() == "2.5"


@pytest.mark.parametrize("width", [1300, 400])
def test_it_fits_into_the_page(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_timeout(200)
    for _ in range(3): press(page, "step")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    one, other = (page.locator(f"[data-panel={name}]").bounding_box()
                  for name in ("frames", "landscape"))
    assert (other["x"] > one["x"] + one["width"]) is (width == 1300)
    assert len(page.locator(".seven-logits").screenshot()) > 20_000


def test_the_stored_output_runs_in_a_dark_page_twice(browser):
    page = browser.new_page()
    page.set_content("<style>body { background: #111; color: #eee } svg { max-width: 10px } "
                     f"button {{ display: none }}</style>{stored_figure()}{stored_figure()}")
    figures = page.locator(".seven-logits")
    assert figures.count() == 2
    for index in (0, 1):
        figures.nth(index).get_by_role("button", name="step", exact=True).click()
        assert "Step 1." in figures.nth(index).locator(".status").inner_text()
    assert figures.first.evaluate("each => getComputedStyle(each).backgroundColor") == (
        "rgb(255, 255, 255)")
    page.close()


def test_jupyterlab_shows_it(browser, tmp_path):
    code = CELLS[max(k for k, cell in enumerate(CELLS) if "seven_logits.html" in cell.source
                     and cell.cell_type == "code")].source
    cell = {"cell_type": "code", "source": f"from IPython.display import HTML\n{code}",
            "outputs": [], "metadata": {}, "execution_count": None, "id": "a"}
    kernel = {"kernelspec": {"display_name": "python3", "language": "python", "name": "python3"}}
    (tmp_path/"lesson.ipynb").write_text(json.dumps(
        {"cells": [cell], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))
    (tmp_path/FIGURE.name).write_bytes(FIGURE.read_bytes())
    with laboratory(browser, tmp_path/"lesson.ipynb") as page:
        page.wait_for_selector(".seven-logits .status", state="attached", timeout=180_000)
        page.locator("[data-do=step]").focus()
        page.keyboard.press("Enter")
        settled(page, lambda: page.locator(".status").inner_text(), lambda text: "Step 1." in text)
