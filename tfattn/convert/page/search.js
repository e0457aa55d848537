// Searches over a tree of hypotheses: greedy search, sampling and beam search.

const MULTIPLE = 8;
const rounded = (length) => Math.ceil(length / MULTIPLE) * MULTIPLE;

// The maximum tokens of a translation, from the source's length with the end token.
function limitOf(length, maxLength) {
  return Math.min(rounded(Math.floor(3 * rounded(length) / 2) + 8), maxLength ?? Infinity);
}

// Log-probabilities; a temperature below 1 makes likely tokens likelier.
function logProbabilities(logits, temperature = 1) {
  const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  let total = 0;
  for (const logit of logits) total += Math.exp((logit - most) / temperature);
  const log = Math.log(total);
  return Float64Array.from(logits, (logit) => (logit - most) / temperature - log);
}

// The k tokens with the highest scores, the best first; lower ids first among equals. No search
// writes padding.
function best(scores, k) {
  const found = [];
  for (let id = PADDING + 1; id < scores.length; id += 1) {
    if (found.length === k && !(scores[id] > scores[found[k - 1]])) continue;
    let at = found.length;
    while (at && scores[id] > scores[found[at - 1]]) at -= 1;
    found.splice(at, 0, id);
    if (found.length > k) found.pop();
  }
  return found;
}

// The hypotheses of a sentence. A node's path has the written tokens; its logits score the next
// one. A node that ended, by its token or by its length, has no logits.
class Tree {
  // ids: the source without its end. options: those of `Transformer.encode`.
  constructor(model, ids, options) {
    this.model = model;
    this.encoded = model.encode([...ids, END], options);
    this.limit = limitOf(ids.length + 1, model.maxLength.decoder);
    this.root = model.step(this.encoded, null, BEGIN);
  }

  child(node, token) {
    node.children ??= new Map();
    if (!node.children.has(token)) {
      const position = node.position + 1;
      const ended = token === END || position === this.limit;
      node.children.set(token, ended
        ? { token, parent: node, position, ended }
        : this.model.step(this.encoded, node, token));
    }
    return node.children.get(token);
  }

  greedy(node = this.root) {
    while (!node.ended) node = this.child(node, best(node.logits, 1)[0]);
    return node;
  }

  // A token, drawn by its probability.
  sample(node, temperature, random = Math.random()) {
    const shares = logProbabilities(node.logits, temperature).map(Math.exp);
    let rest = random * (1 - shares[PADDING]);
    shares[PADDING] = 0;
    const drawn = shares.findIndex((share) => (rest -= share) < 0);
    return drawn < 0 ? best(shares, 1)[0] : drawn;
  }
}

const tokensOf = (node) => pathTo(node).slice(1).map(({ token }) => token);

// Beam search, as `tfattn.BeamSearch`:
//
//     score = Σ log p(token | the tokens before it) / length ** lengthPenalty
class BeamSearch {
  constructor(tree, numBeams, lengthPenalty = 1) {
    Object.assign(this, { tree, numBeams, lengthPenalty, done: false });
    this.beams = [{ node: tree.root, sum: 0, score: 0, length: 0 }];  // the best first
    this.steps = [];  // the beams of each step, each with the index of its parent
  }

  score(sum, length) {
    return sum / length ** this.lengthPenalty;
  }

  step() {
    const candidates = this.beams.flatMap((beam, parent) => {
      const { node, sum, length } = beam;
      if (node.ended) return [{ ...beam, parent, unchanged: true }];
      const gains = logProbabilities(node.logits);
      return best(node.logits, this.numBeams).map((token) => {
        const total = sum + gains[token];
        const score = this.score(total, length + 1);
        return { token, parent, sum: total, length: length + 1, score };
      });
    });
    candidates.sort((a, b) => b.score - a.score);  // stable: the order of the beams among equals
    const kept = candidates.slice(0, this.numBeams);
    for (const beam of kept) {
      if (!beam.unchanged) beam.node = this.tree.child(this.beams[beam.parent].node, beam.token);
    }
    this.beams = kept;
    this.steps.push(kept);
    this.done = this.isDone();
  }

  // Whether no open beam can still get a better score: a sum can only fall.
  isDone() {
    const open = this.beams.filter(({ node }) => !node.ended);
    const ended = this.beams.filter(({ node }) => node.ended).map(({ score }) => score);
    const bounds = open.map(({ sum }) => this.score(sum, this.tree.limit));
    return !open.length || Math.max(...bounds) < Math.max(...ended);
  }
}
