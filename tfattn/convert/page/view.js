// The sentence, its translation and its candidates; the actions of buttons and keys.

const CANDIDATES = 8;

// A sentence, and changes of the model

function translate(sentence) {
  pause();
  const source = sourceWords.encode(sentence);
  const maxLength = model.maxLength.encoder ?? Infinity;
  if (!source.length) return notify(text().empty);
  if (source.length + 1 > maxLength) return notify(text().tooLong(maxLength - 1));
  state.source = source;
  state.hidden.clear();
  find("#source").value = sentence;
  rebuild([]);
  finish();
  return notify(...unknownIn(source, sentence));
}

function notify(message = "", button = "") {
  find("#notice").replaceChildren(message, button);
}

// A message about unknown words, and a button for a sentence with fewer of them.
function unknownIn(source, sentence) {
  const count = (tokens) => tokens.filter(({ id }) => id === UNKNOWN).length;
  if (!count(source)) return [];
  const words = source.filter(({ id }) => id === UNKNOWN).map((token) => token.text);
  const message = `${text().unknown(words)} `;
  const tidy = split(sentence.toLowerCase().replace(/([.,!?;:])/g, " $1 ")).join(" ");
  if (count(sourceWords.encode(tidy)) >= count(source)) return [message];
  const button = make("button", { type: "button" }, text().tidy(tidy));
  button.addEventListener("click", () => {
    translate(tidy);
    keepFocus();
  });
  return [message, button];
}

// Trees of the sentence with the changes and without, and the hypothesis of these tokens.
function rebuild(tokens) {
  const ids = state.source.map(({ id }) => id);
  const { hidden, off } = state;
  state.whole = new Tree(model, ids);
  state.tree = hidden.size || off.size ? new Tree(model, ids, { hidden, off }) : state.whole;
  state.node = nodeOf(state.tree, tokens);
  restart();
}

function nodeOf(tree, tokens) {
  let node = tree.root;
  for (const token of tokens) if (!node.ended) node = tree.child(node, token);
  return node;
}

// A new search with beams, if that is the chosen one.
function restart() {
  state.query = null;
  state.beams = null;
  if (state.search === "beam") {
    state.beams = { search: new BeamSearch(state.tree, 5), shown: 0 };
    state.node = state.tree.root;
  }
  show();
}

// After a change an unfinished translation keeps its tokens; a finished one is translated again.
function toggle(set, member) {
  pause();
  if (!set.delete(member)) set.add(member);
  change();
}

function change() {
  const { ended } = state.node;
  rebuild(ended ? [] : tokensOf(state.node));
  if (ended) finish();
}

// Steps

const atEnd = () => (state.beams
  ? state.beams.search.done && state.beams.shown === state.beams.search.steps.length
  : state.node.ended);

function step() {
  if (atEnd()) return;
  const { beams, tree, node } = state;
  if (beams) {
    if (beams.shown === beams.search.steps.length) beams.search.step();
    beams.shown += 1;
    state.node = beams.search.steps[beams.shown - 1][0].node;
  } else if (state.search === "sample") {
    state.node = tree.child(node, tree.sample(node, state.temperature));
  } else {
    state.node = tree.child(node, best(node.logits, 1)[0]);
  }
}

function forward() {
  step();
  state.query = null;
  show();
  if (atEnd()) pause();
}

function finish() {
  while (!atEnd()) step();
  pause();
  forward();
}

function back() {
  pause();
  const { beams, tree, node } = state;
  if (beams) {
    beams.shown = Math.max(0, beams.shown - 1);
    state.node = beams.shown ? beams.search.steps[beams.shown - 1][0].node : tree.root;
  } else {
    state.node = node.parent ?? node;
  }
  state.query = null;
  show();
}

function start() {
  pause();
  if (state.beams) state.beams.shown = 0;
  goTo(state.tree.root);
}

function goTo(node) {
  pause();
  state.node = node;
  state.query = null;
  show();
}

// Goes on from a token that the reader chose, greedily instead of with beams. After the end it
// takes the place of the last one.
function pick(token) {
  if (state.beams) Object.assign(state, { search: "greedy", beams: null });
  goTo(state.tree.child(reading(), token));
}

function play() {
  if (state.timer) return pause();
  if (atEnd()) start();
  state.timer = setInterval(forward, 800);
  return forward();
}

function pause() {
  clearInterval(state.timer);
  state.timer = null;
  showPlay();
}

function chooseSearch(search) {
  pause();
  state.search = search;
  change();
}

// Display

function show() {
  const focused = document.activeElement;
  showSource();
  showTranslation();
  showCandidates();
  showChanges();
  showBeams();
  showAttention();
  if (focused !== document.body) keepFocus();
}

// The focus goes to the last written word from a control that is gone or disabled.
function keepFocus() {
  const { activeElement: now } = document;
  const isLost = now === document.body || now.disabled || !now.getClientRects().length;
  if (isLost) find("#written .active").focus({ preventScroll: true });
}

function showSource() {
  fill(find("#tokens"), [...state.source, { text: sourceWords.words[END] }].map((token, at) => (
    wordButton(token.text, {
      pressed: state.hidden.has(at),
      kind: [state.hidden.has(at) ? "hidden" : "", token.id === UNKNOWN ? "unknown" : ""].join(" "),
      choose: () => toggle(state.hidden, at),
    }))));
}

function showTranslation() {
  const path = pathTo(state.node);
  const words = path.map((node) => wordButton(wordOf(node.token), {
    kind: node === state.node ? "active" : "", choose: () => goTo(node) }));
  fill(find("#written"), words);
  find("#writtenHelp").textContent = path.length > 1 ? text().writtenHelp : text().beginHelp;
  find("#text").textContent = targetWords.decode(tokensOf(state.node));
  find("#start").disabled = find("#back").disabled = !state.node.parent && !state.beams?.shown;
  find("#forward").disabled = find("#finish").disabled = atEnd();
  showPlay();
  const searches = ["greedy", "sample", "beam"].map((name) => [name, text()[name]]);
  showChoices(find("#search"), "search", searches, state.search, chooseSearch);
  find("#heat").hidden = state.search === "beam";
  find("#heat output").textContent = state.temperature.toFixed(1);
}

function showPlay() {
  find("#play").textContent = state.timer ? text().pause : text().play;
}

// The most probable next tokens, after the end those of the last step, and their probabilities
// without the changes.
function showCandidates() {
  const help = state.beams ? text().nextOfBeams : text().nextHelp;
  find("#nextHelp").textContent = state.node.ended ? text().ended : help;
  const temperature = state.beams ? 1 : state.temperature;
  const shares = (node) => logProbabilities(node.logits, temperature).map(Math.exp);
  const now = shares(reading());
  const without = state.tree === state.whole ? null : nodeOf(state.whole, tokensOf(reading()));
  const then = without && shares(without);
  fill(find("#candidates"), best(now, CANDIDATES).map((token) => {
    const button = make("button", { type: "button" },
      make("span", { className: "text", dir: "auto" }, wordOf(token)),
      make("span", { className: "soft" }, then ? text().was(percent(then[token])) : ""),
      make("span", { className: "number" }, percent(now[token])));
    button.style.setProperty("--part", percent(now[token]));
    button.addEventListener("click", () => pick(token));
    return make("li", {}, button);
  }));
}

function showChanges() {
  const isChanged = state.tree !== state.whole;
  find("#changes").hidden = !isChanged;
  const tell = (message) => {  // a status is read aloud when it is set
    const effect = find("#effect");
    if (effect.textContent !== message) effect.textContent = message;
  };
  if (!isChanged) return tell("");
  const [before, after] = [state.whole, state.tree].map((tree) => (
    targetWords.decode(tokensOf(tree.greedy()))));
  find("#before").textContent = before;
  find("#after").textContent = after;
  tell(after === before ? text().same : text().other(after));
  const heads = [...state.off].sort().map((of) => {
    const [view, ...place] = of.split(" ");
    return text().headOf(text()[view], text().headName(...place));
  });
  const source = [...state.source.map((token) => token.text), sourceWords.words[END]];
  const words = [...state.hidden].sort((a, b) => a - b).map((at) => `“${source[at]}”`);
  find("#changed").textContent = text().changed([...heads, ...words]);
}

function showExamples() {
  find("#examples").replaceChildren(...data.examples.map((sentence) => {
    const button = make("button", { type: "button", dir: "auto" }, sentence);
    button.addEventListener("click", () => translate(sentence));
    return button;
  }));
}

function showLanguage() {
  showTexts(state.language);
  document.title = find("h1").textContent = data.title ?? text().title;
  const count = data.tensors.reduce((sum, { rows, columns }) => sum + rows * columns, 0);
  find("#about").textContent = text().about[model.kind]({ ...model, count: count.toLocaleString("en") });
  const known = sourceWords.words.slice(SPECIAL);
  find("#known").hidden = sourceWords.kind !== "words" || known.length > 1000;
  find("#known summary").textContent = text().known(known.length);
  find("#known p").textContent = known.sort().join(" ");
  const languages = Object.entries(TEXTS).map(([language, { name }]) => [language, name]);
  showChoices(find("#language"), "language", languages, state.language, (language) => {
    state.language = language;
    showLanguage();
    show();
  });
}

// Events

function listen() {
  for (const form of document.forms) form.addEventListener("submit", (e) => e.preventDefault());
  const source = find("#source");
  find("#type").addEventListener("submit", () => translate(source.value));
  source.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    translate(source.value);
  });
  const actions = { start, back, play, forward, finish };
  for (const [id, action] of Object.entries(actions)) {
    find(`#${id}`).addEventListener("click", action);
  }
  find("#undo").addEventListener("click", () => {
    state.hidden.clear();
    state.off.clear();
    change();
  });
  find("#temperature").addEventListener("input", (event) => {
    state.temperature = +event.target.value;
    show();
  });
  find("#place").addEventListener("input", (event) => {
    state.place = Math.max(0, Math.floor(+event.target.value) || 0);
    showQuery();
  });
  find("#place").addEventListener("change", (event) => { event.target.value = state.place; });
  document.addEventListener("keydown", (event) => {
    const action = { " ": play, ArrowLeft: back, ArrowRight: forward }[event.key];
    const isTyping = event.target.closest("input, textarea");
    const isPress = event.key === " " && event.target.closest("button, summary, [role=button]");
    const box = event.key !== " " && event.target.closest(".wide");
    const isScroll = box && box.scrollWidth > box.clientWidth;
    if (!action || isTyping || isPress || isScroll) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  });
  darkMode.addEventListener("change", showAttention);
  new ResizeObserver(showQuery).observe(find("main"));
}

listen();
showLanguage();
showExamples();
for (const sentence of [...data.examples, sourceWords.decode([SPECIAL]), "?"]) {
  if (!state.tree) translate(sentence);  // the first that the model can read
}
