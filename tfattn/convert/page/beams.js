// The beams of a search as a tree: a column for each step, a box for each hypothesis.

const ROW = 58, GAP = 40, TOP = 52, LEFT = 60, BOX = 40;

function showBeams() {
  find("#beams").hidden = !state.beams;
  if (!state.beams) return;
  const { search, shown } = state.beams;
  const steps = search.steps.slice(0, shown);
  const complete = search.done && shown === search.steps.length;
  const best = complete ? pathOf(steps, shown - 1, 0) : [];
  const current = pathOf(steps, ...placeOf(steps, state.node));
  const widths = steps.map(widthOf);
  const starts = [];
  const end = widths.reduce((x, width, at) => (starts[at] = x) + width + GAP, LEFT + GAP);
  const size = { width: end, height: TOP + ROW * search.numBeams - 24 };
  const begin = draw("text", { x: LEFT / 2, y: TOP + 4, class: "soft" }, text().beginning);
  const svg = draw("svg", { ...size, viewBox: `0 0 ${size.width} ${size.height}` }, begin);
  const boxes = [];
  steps.forEach((beams, step) => {
    const middle = starts[step] + widths[step] / 2;
    svg.append(draw("text", { x: middle, y: 16, class: "soft" }, `${step + 1}`));
    beams.forEach((beam, at) => {
      const marks = [best[step] === at ? "best" : "", current[step] === at ? "current" : "",
        beam.unchanged ? "on" : ""].join(" ");
      const from = step ? starts[step - 1] + widths[step - 1] : LEFT;
      const y = TOP + (step ? beam.parent : 0) * ROW, to = TOP + at * ROW, bend = from + GAP / 2;
      const x = beam.unchanged ? starts[step] + widths[step] : starts[step];
      svg.append(draw("path", {
        d: `M${from} ${y}C${bend} ${y} ${bend} ${to} ${from + GAP} ${to}L${x} ${to}`, class: marks,
      }));
      if (!beam.unchanged) boxes.push(boxOf(beam, starts[step], to, widths[step], marks));
    });
  });
  svg.append(...boxes);
  const tree = find("#tree");
  const focused = [...tree.querySelectorAll(".box")].indexOf(document.activeElement);
  tree.replaceChildren(svg);
  boxes[focused]?.focus({ preventScroll: true });
  if (tree.dataset.shown !== `${shown}`) tree.scrollLeft = tree.scrollWidth;
  tree.dataset.shown = shown;
}

function boxOf({ node, score }, x, y, width, marks) {
  const middle = x + width / 2;
  const box = draw("g", {
    class: `box ${marks}`, tabindex: 0, role: "button",
    "aria-label": `${targetWords.decode(tokensOf(node))}, ${decimals(score)}`,
  }, draw("rect", { x, y: y - BOX / 2, width, height: BOX, rx: 6 }),
  draw("text", { x: middle, y: y - 2 }, wordOf(node.token)),
  draw("text", { x: middle, y: y + 14, class: "soft" }, decimals(score)));
  const choose = () => goTo(node);
  box.addEventListener("click", choose);
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault(); // the space bar would scroll
    choose();
  });
  return box;
}

function widthOf(beams) {
  const context = make("canvas").getContext("2d");
  context.font = "15px system-ui, sans-serif";
  return Math.max(56, ...beams.map(({ node }) => (
    context.measureText(wordOf(node.token)).width + 20)));
}

// The last step with a beam of a node, and the beam's rank there.
function placeOf(steps, node) {
  for (let step = steps.length - 1; step >= 0; step -= 1) {
    const at = steps[step].findIndex((beam) => beam.node === node);
    if (at >= 0) return [step, at];
  }
  return [-1, 0];
}

// The ranks, by step, of the beams that lead to this beam.
function pathOf(steps, step, at) {
  const ranks = [];
  for (; step >= 0; step -= 1) {
    ranks[step] = at;
    at = steps[step][at].parent;
  }
  return ranks;
}
