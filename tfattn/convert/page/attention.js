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

const chosenQuery = (attention) => Math.min(state.query ?? Infinity, attention.rows.length - 1);

function showAttention() {
  const views = model.views.map((name) => [name, text()[name]]);
  showHeadChoices(find("#views"), views, model.depth, model.numHeads);
  find("#viewHelp").textContent = text()[`${state.view}Help`];
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
  const ofHeads = attention.weights[query];
  const weights = state.head === MEAN ? mean(ofHeads) : ofHeads[state.head];
  const choose = (at) => {
    state.query = at === attention.rows.length - 1 && state.view !== "encoder" ? null : at;
    showQuery();
    drawHeads();
  };
  fill(find("#queries"), attention.rows.map((word, at) => wordButton(word, {
    pressed: at === query, kind: at === query ? "active" : "", choose: () => choose(at) })));
  find("#keys").replaceChildren(...attention.columns.map((word, at) => {
    const element = makeWord("span", word, attention.isVisible(query, at) ? "" : "hidden");
    weigh(weights[at], element);
    return element;
  }));
  drawLines(weights.map((weight, key) => ({ queries: query, keys: key, weight })));
  showWalk(attention, query);
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
      const button = headButton(name, () => chooseHead(state.view, layer, head));
      button.setAttribute("aria-pressed", chosen);
      button.dataset.of = `picture ${of}`;
      const input = make("input", { type: "checkbox", checked: !state.off.has(of) });
      input.setAttribute("aria-label", text().switchHead(name));
      input.dataset.of = `switch ${of}`;
      input.addEventListener("change", () => toggle(state.off, of));
      const label = model.numHeads > 1 ? `${head}` : text().on;
      return make("div", { className: state.off.has(of) ? "off" : "" }, button,
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
    const { rows, columns, weights } = attentionOf(state.view, layer);
    const active = { side: "queries", index: chosenQuery({ rows }) };
    const row = find("#layers").children[layer].querySelectorAll("canvas");
    row.forEach((canvas, head) => picture(
      canvas, columns.length, weights.flatMap((heads) => [...heads[head]]), active));
  }
}
