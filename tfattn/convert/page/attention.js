// The weights of a layer's attention: as lines and shades for one query, as pictures for all.

// The rows and columns of a view: words, vectors and weights.
//
// A view is "encoder", "decoder" or "cross". A query of the last two is a step, named by the
// token that it writes; "?" is the current step.
function attentionOf(view, layer) {
  const source = [...state.source.map((token) => token.text), sourceWords.words[END]];
  const { encoded } = state.tree;
  if (view === "encoder") {
    const { queries, keys, values, weights } = encoded.layers[layer];
    const isVisible = (_, key) => encoded.isVisible(key);
    return { rows: source, columns: source, queries, keys, values, weights, isVisible };
  }
  const path = pathTo(reading());
  const written = tokensOf(state.node).map(wordOf);
  const rows = state.node.ended ? written : [...written, "?"];
  const own = path.map((node) => node.layers[layer]);
  if (view === "cross") {
    const { keys, values } = encoded.cross[layer];
    const queries = own.map((part) => part.crossQuery);
    const weights = own.map((part) => part.crossWeights);
    const isVisible = (_, key) => encoded.isVisible(key);
    return { rows, columns: source, queries, keys, values, weights, isVisible };
  }
  const [keys, values] = pastOf(path, layer);
  const queries = own.map((part) => part.query);
  const later = (weights) => path.map((_, i) => weights[i] ?? 0);  // no query sees a later token
  const weights = own.map((part) => part.weights.map(later));
  const isVisible = (query, key) => key <= query;
  const columns = path.map((node) => wordOf(node.token));
  return { rows, columns, queries, keys, values, weights, isVisible };
}

// The weights of a query over the keys, of one head or of the mean of all.
function weightsOf(ofHeads, head) {
  if (head !== MEAN) return ofHeads[head];
  return ofHeads[0].map((_, key) => (
    ofHeads.reduce((sum, weights) => sum + weights[key], 0) / ofHeads.length));
}

const chosenQuery = (attention) => Math.min(state.query ?? Infinity, attention.rows.length - 1);

function showAttention() {
  const { view, layer, head } = state;
  const numbers = (count) => [...Array(count).keys()].map((i) => [i, i]);
  const views = model.views.map((name) => [name, text()[name]]);
  const heads = numbers(model.numHeads);
  if (heads.length > 1) heads.unshift([MEAN, text().mean]);
  const form = find("#views");
  showChoices(form, "view", views, view, (value) => chooseHead(value, layer, head));
  showChoices(form, "layer", numbers(model.depth), layer, (value) => (
    chooseHead(view, value, head)));
  showChoices(form, "head", heads, head, (value) => chooseHead(view, layer, value));
  find("#viewHelp").textContent = text()[`${view}Help`];
  showQuery();
  showHeads();
}

function chooseHead(view, layer, head) {
  if (view !== state.view) state.query = null;
  Object.assign(state, { view, layer, head });
  showAttention();
}

function showQuery() {
  const attention = attentionOf(state.view, state.layer);
  const query = chosenQuery(attention);
  const weights = weightsOf(attention.weights[query], state.head);
  const choose = (at) => {
    state.query = at === attention.rows.length - 1 && state.view !== "encoder" ? null : at;
    showQuery();
    drawHeads();
  };
  fill(find("#queries"), attention.rows.map((word, at) => wordButton(word, {
    pressed: at === query, kind: at === query ? "active" : "", choose: () => choose(at) })));
  find("#keysOfView").replaceChildren(...attention.columns.map((word, at) => {
    const { className, style, childNodes } = wordButton(word, { weight: weights[at] });
    const hidden = attention.isVisible(query, at) ? "" : " hidden";
    const element = make("span", { className: className + hidden }, ...childNodes);
    element.style.cssText = style.cssText;
    return element;
  }));
  drawLines(query, weights);
  showWalk(attention, query);
}

function drawLines(query, weights) {
  const svg = find("#lines");
  const box = svg.getBoundingClientRect();
  const from = find("#queries").children[query].getBoundingClientRect();
  const x = from.left + from.width / 2 - box.left, y = from.bottom - box.top;
  svg.replaceChildren(...[...find("#keysOfView").children].flatMap((key, at) => {
    if (weights[at] < 0.005) return [];
    const { left, width, top } = key.getBoundingClientRect();
    const toX = left + width / 2 - box.left, toY = top - box.top, middle = (y + toY) / 2;
    return [draw("path", {
      d: `M${x} ${y} C${x} ${middle} ${toX} ${middle} ${toX} ${toY}`,
      "stroke-width": 1 + 5 * weights[at],
      opacity: shade(weights[at]),
    })];
  }));
}

// All heads of a view, each with its weights as a picture and a switch.
function showHeads() {
  const isOne = model.depth * model.numHeads === 1;
  find("#heads h2").textContent = isOne ? text().oneHead : text().allHeads;
  find("#headsHelp").textContent = isOne ? text().oneHeadHelp : text().headsHelp;
  fillHeads();
  drawHeads();
}

function fillHeads() {
  const focused = document.activeElement?.dataset?.of;
  find("#layers").replaceChildren(...[...Array(model.depth).keys()].map((layer) => {
    const heads = [...Array(model.numHeads).keys()].map((head) => {
      const name = text().headName(layer, head), of = `${state.view} ${layer} ${head}`;
      const chosen = layer === state.layer && head === state.head;
      const picture = make("button", { type: "button", className: "head" }, make("canvas"));
      picture.setAttribute("aria-label", name);
      picture.setAttribute("aria-pressed", chosen);
      picture.dataset.of = `picture ${of}`;
      picture.addEventListener("click", () => chooseHead(state.view, layer, head));
      const input = make("input", { type: "checkbox", checked: !state.off.has(of) });
      input.setAttribute("aria-label", text().switchHead(name));
      input.dataset.of = `switch ${of}`;
      input.addEventListener("change", () => toggle(state.off, of));
      const label = model.numHeads > 1 ? `${head}` : text().on;
      return make("div", { className: state.off.has(of) ? "off" : "" }, picture,
        make("label", { className: "switch" }, input, label));
    });
    const row = make("div", { className: "heads" }, ...heads);
    const title = make("p", { className: "soft", hidden: model.depth < 2 }, text().layerName(layer));
    return make("div", {}, title, row);
  }));
  if (focused) find(`[data-of="${focused}"]`)?.focus();
}

function drawHeads() {
  for (let layer = 0; layer < model.depth; layer += 1) {
    const attention = attentionOf(state.view, layer);
    const active = chosenQuery(attention);
    const row = find("#layers").children[layer].querySelectorAll("canvas");
    row.forEach((canvas, head) => picture(canvas, attention, head, active));
  }
}

function color(name) {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return hex.match(/\w\w/g).map((digits) => parseInt(digits, 16));
}

// One pixel per weight; queries other than the active one are faint.
function picture(canvas, { rows, columns, weights }, head, active) {
  [canvas.width, canvas.height] = [columns.length, rows.length];
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns.length, rows.length);
  const [empty, full] = [color("--chip"), color("--shade")];
  for (let query = 0, at = 0; query < rows.length; query += 1) {
    for (let key = 0; key < columns.length; key += 1, at += 4) {
      const part = shade(weights[query][head][key]);
      empty.forEach((value, i) => { image.data[at + i] = value + part * (full[i] - value); });
      image.data[at + 3] = query === active ? 255 : 130;
    }
  }
  context.putImageData(image, 0, 0);
}
