// Shared by all parts of the page: the model, the state and functions that make elements.

const data = JSON.parse(document.getElementById("data").textContent);
const Model = { transformer: Transformer, recurrent: Recurrent }[data.settings.kind];
const model = new Model(data.settings, readWeights(data.tensors, data.weights));
const sourceWords = new Vocabulary(data.source);
const targetWords = data.target ? new Vocabulary(data.target) : sourceWords;

const MEAN = -1;  // in place of a head: the mean of all heads

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

const find = (selector) => document.querySelector(selector);
const text = () => TEXTS[state.language];

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A row of radio buttons for [value, label] of each choice.
function showChoices(form, name, choices, chosen, choose) {
  const buttons = choices.map(([value, label]) => {
    const input = make("input", { type: "radio", name, value, checked: value === chosen });
    input.addEventListener("change", () => choose(value));
    return make("label", { className: "choice" }, input, make("span", {}, label));
  });
  const legend = text()[name] ? [make("legend", {}, text()[name])] : [];
  const focused = document.activeElement?.name === name;
  const set = make("fieldset", {}, ...legend, ...buttons);
  set.dataset.name = name;
  set.hidden = choices.length < 2;
  const old = form.querySelector(`[data-name=${name}]`);
  if (old) old.replaceWith(set);
  else form.append(set);
  if (focused) set.querySelector(":checked")?.focus();
}

// A word as a button, shaded by a weight in [0, 1].
function wordButton(word, { weight = null, pressed = null, kind = "", choose } = {}) {
  const button = make("button", { type: "button", className: `word ${kind}` },
    make("span", { className: "text", dir: "auto" }, word));
  if (weight !== null) {
    button.style.setProperty("--weight", shade(weight));
    button.classList.toggle("strong", isStrong(weight));
    button.append(make("span", { className: "number" }, weight < 0.0005 ? "" : percent(weight)));
  }
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

function percent(weight) {
  const share = 100 * weight;
  return `${share >= 9.95 || share < 0.05 ? Math.round(share) : share.toFixed(1)}%`;
}

// The square root makes small weights visible.
const shade = (weight) => Math.min(1, Math.sqrt(weight));

// Whether a weight's shade needs the other color of text.
const darkMode = matchMedia("(prefers-color-scheme: dark)");
const isStrong = (weight) => shade(weight) > (darkMode.matches ? 0.48 : 0.82);

const decimals = (value) => (Math.round(100 * value) / 100 + 0).toFixed(2).replace("-", "\u2212");

// The node of the current step: a node that ended has no step.
const reading = () => (state.node.ended ? state.node.parent : state.node);

const wordOf = (token) => targetWords.words[token];
