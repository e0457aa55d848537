// Shared by all parts of the page: the model, the state and words as buttons.

const Model = { transformer: Transformer, recurrent: Recurrent }[data.settings.kind];
const model = new Model(data.settings, readWeights(data.tensors, data.weights));
const sourceWords = new Vocabulary(data.source);
const targetWords = data.target ? new Vocabulary(data.target) : sourceWords;

const state = {
  language: (location.hash || `#${navigator.language}`).startsWith("#zh") ? "zh" : "en",
  source: [],  // the tokens {text, id} of the sentence, without its end
  hidden: new Set(),  // positions of source tokens that no query sees
  off: new Set(),  // heads without an output, as "encoder 0 3"
  whole: null,  // the tree of the model without these changes
  tree: null,  // and with them
  node: null,  // the current hypothesis
  search: "greedy",
  temperature: 1,
  beams: null,  // {search, shown}: the search with beams, and the steps that are shown
  timer: null,  // while playing
  view: "cross",
  layer: model.depth - 1,
  head: model.numHeads > 1 ? MEAN : 0,
  query: null,  // the chosen query of the view; null for the last
  place: 0,  // the feature of the value whose computation is shown
};

const text = () => TEXTS[state.language];

function wordButton(word, { pressed = null, kind, choose }) {
  const button = Object.assign(makeWord("button", word, kind), { type: "button" });
  if (pressed !== null) button.setAttribute("aria-pressed", pressed);
  button.addEventListener("click", choose);
  return button;
}

// Puts buttons, or items with a button, into a row, and keeps the focus at its place.
function fill(row, items) {
  const at = [...row.children].findIndex((item) => item.contains(document.activeElement));
  row.replaceChildren(...items);
  const item = items[Math.min(at, items.length - 1)];
  (item?.querySelector("button") ?? item)?.focus();
}

const decimals = (value) => (Math.round(100 * value) / 100 + 0).toFixed(2).replace("-", "\u2212");

// The node of the current step: a node that ended has no step.
const reading = () => (state.node.ended ? state.node.parent : state.node);

const wordOf = (token) => targetWords.words[token];
