// Weights and arithmetic over typed arrays, and the Transformer, from ids to logits, as Python's
// `tfattn.Transformer` without dropout. A vector is a Float32Array, a sequence a list of them.

// Weights

// From names to {rows, columns, data}: the tensors of a text in base64, one after the other.
function readWeights(tensors, text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = letters.charCodeAt(i);
  let at = 0;
  const take = (Type, count) => {
    const part = new Type(bytes.buffer, at, count);
    at += 4 * Math.ceil(part.byteLength / 4);  // each part begins at a multiple of 4 bytes
    return part;
  };
  const found = {};
  for (const { name, rows, columns, type } of tensors) {
    const scales = type === "int8" ? take(Float32Array, rows) : null;
    const stored = take(STORED[type], rows * columns);
    const data = new Float32Array(stored.length);
    for (let i = 0; i < data.length; i += 1) {
      if (scales) data[i] = stored[i] * scales[Math.floor(i / columns)];
      else data[i] = type === "float16" ? fromHalf(stored[i]) : stored[i];
    }
    found[name] = { rows, columns, data };
  }
  return found;
}

const STORED = { int8: Int8Array, float16: Uint16Array, float32: Float32Array };

// A float16 from its bits: a sign, 5 bits of the exponent, 10 of the fraction.
function fromHalf(bits) {
  const sign = bits >> 15 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (!exponent) return sign * fraction * 2 ** -24;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

// Arithmetic

function linear(x, weight, bias) {  // a row of weights for each output
  const { rows, columns, data } = weight;
  const y = new Float32Array(rows);
  for (let i = 0, at = 0; i < rows; i += 1) {
    let sum = bias ? bias.data[i] : 0;
    for (let j = 0; j < columns; j += 1, at += 1) sum += data[at] * x[j];
    y[i] = sum;
  }
  return y;
}

const add = (x, y) => x.map((value, i) => value + y[i]);

function dot(x, y, from, to) {
  let sum = 0;
  for (let i = from; i < to; i += 1) sum += x[i] * y[i];
  return sum;
}

// Weights of scores; 0 for each score of -Infinity, even if all are.
function softmax(scores) {
  const most = Math.max(...scores);
  if (most === -Infinity) return scores.map(() => 0);
  const powers = scores.map((score) => Math.exp(score - most));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => power / total);
}

function normalize(x, gamma, beta, epsilon) {
  const mean = x.reduce((sum, value) => sum + value, 0) / x.length;
  const variance = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.length;
  const scale = 1 / Math.sqrt(variance + epsilon);
  return x.map((value, i) => gamma.data[i] * (value - mean) * scale + beta.data[i]);
}

// Abramowitz, Stegun 1964, formula 7.1.26.
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const sum = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t
    + 0.254829592) * t;
  return Math.sign(x) * (1 - sum * Math.exp(-x * x));
}

const ACTIVATIONS = {
  relu: (x) => Math.max(x, 0),
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  silu: (x) => x / (1 + Math.exp(-x)),
  tanh: Math.tanh,
};

// Attention of one query over keys and values. A vector holds head 0, then head 1, and so on.
//
//     weights = softmax(scores where visible)
//     output = Σ weight · value                 0 for a head that is off
function attend(query, keys, values, { numHeads, isVisible, isOff, score = scaledDot }) {
  const size = query.length / numHeads, width = values[0].length / numHeads;
  const output = new Float32Array(values[0].length);
  const weights = [];  // of each head
  for (let head = 0; head < numHeads; head += 1) {
    const [from, to] = [head * size, (head + 1) * size];
    weights[head] = softmax(keys.map((key, i) => (
      isVisible(i) ? score(query, key, from, to) : -Infinity)));
    if (isOff(head)) continue;
    values.forEach((value, i) => {
      for (let j = head * width; j < (head + 1) * width; j += 1) {
        output[j] += weights[head][i] * value[j];
      }
    });
  }
  return { output, weights };
}

const scaledDot = (query, key, from, to) => dot(query, key, from, to) / Math.sqrt(to - from);

const PADDING = 0;

// The Transformer

class Transformer {
  // settings: numLayers, numHeads, width, normFirst, epsilon, activation, shared (one matrix for
  // embeddings and output) and positions, {name, scale, wavelength or null} of each side.
  constructor(settings, weights) {
    const views = ["encoder", "decoder", "cross"];
    Object.assign(this, settings, { weights, views, depth: settings.numLayers });
  }

  linear(x, name) {
    return linear(x, this.weights[`${name}/kernel`], this.weights[`${name}/bias`]);
  }

  norm(x, name) {
    const { [`${name}/gamma`]: gamma, [`${name}/beta`]: beta } = this.weights;
    return normalize(x, gamma, beta, this.epsilon);
  }

  score(query, key, from, to) {
    return scaledDot(query, key, from, to);
  }

  // A token's vector: scale · embedding + position.
  embed(side, id, position) {
    const { name, scale, wavelength } = this.positions[side];
    const table = this.weights[`${this.shared ? "encoder" : side}/embedding/embeddings`].data;
    const learned = this.weights[`${side}/${name}/embeddings`]?.data;
    const x = new Float32Array(this.width);
    for (let i = 0; i < this.width; i += 1) {
      x[i] = scale * table[id * this.width + i];
      if (learned) {
        x[i] += learned[position * this.width + i];
      } else if (wavelength) {
        const frequency = Math.fround(wavelength ** (-2 * Math.floor(i / 2) / this.width));
        const angle = Math.fround(position * frequency);
        x[i] += i % 2 ? Math.cos(angle) : Math.sin(angle);
      }
    }
    return x;
  }

  // A sublayer with its residual connection: norm(x + f(x)), or x + f(norm(x)), per token.
  sublayer(sequence, norm, f) {
    if (this.normFirst) {
      const outputs = f(sequence.map((x) => this.norm(x, `${norm}/norm`)));
      return sequence.map((x, i) => add(x, outputs[i]));
    }
    const outputs = f(sequence);
    return sequence.map((x, i) => this.norm(add(x, outputs[i]), `${norm}/norm`));
  }

  feedForward(sequence, block) {
    return this.sublayer(sequence, `${block}/feed_forward_norm`, (inputs) => inputs.map((x) => {
      const inner = this.linear(x, `${block}/feed_forward/inner`);
      return this.linear(inner.map(ACTIVATIONS[this.activation]), `${block}/feed_forward/outer`);
    }));
  }

  finalNorm(sequence, side) {
    if (!this.normFirst) return sequence;
    return sequence.map((x) => this.norm(x, `${side}/final_norm`));
  }

  // The encoded source: tensors of each layer's attention, keys and values of cross-attention.
  //
  // hidden: a set of positions that no query sees. off: a set of heads, as "encoder 0 3" for head
  // 3 of layer 0; "decoder" and "cross" have an effect in `step`.
  encode(ids, { hidden = new Set(), off = new Set() } = {}) {
    const { numHeads } = this;
    const isVisible = (i) => ids[i] !== PADDING && !hidden.has(i);
    let x = ids.map((id, i) => this.embed("encoder", id, i));
    const layers = [];
    for (let layer = 0; layer < this.numLayers; layer += 1) {
      const block = `encoder/block_${layer}`, name = `${block}/self_attention`;
      const isOff = (head) => off.has(`encoder ${layer} ${head}`);
      x = this.sublayer(x, `${block}/self_attention_norm`, (inputs) => {
        const [queries, keys, values] = ["query", "key", "value"].map((part) => (
          inputs.map((input) => this.linear(input, `${name}/${part}`))));
        const found = queries.map((query) => (
          attend(query, keys, values, { numHeads, isVisible, isOff })));
        layers.push({ queries, keys, values, weights: found.map(({ weights }) => weights) });
        return found.map(({ output }) => this.linear(output, `${name}/attention_output`));
      });
      x = this.feedForward(x, block);
    }
    const memory = this.finalNorm(x, "encoder");
    const cross = layers.map((_, layer) => {
      const name = `decoder/block_${layer}/cross_attention`;
      const [keys, values] = ["key", "value"].map((part) => (
        memory.map((vector) => this.linear(vector, `${name}/${part}`))));
      return { keys, values };
    });
    return { ids, layers, cross, isVisible, off };
  }

  // The hypothesis that extends `parent` by a token: a node of a tree. It holds its own query, key
  // and value of each layer, so that hypotheses share those of the tokens that they share.
  //
  // parent: a node, or null for the begin token.
  step(encoded, parent, token) {
    const node = { token, parent, position: parent ? parent.position + 1 : 0, layers: [] };
    const path = pathTo(node);
    const { numHeads } = this;
    let x = [this.embed("decoder", token, node.position)];
    for (let layer = 0; layer < this.numLayers; layer += 1) {
      const block = `decoder/block_${layer}`;
      const own = node.layers[layer] = {};
      x = this.sublayer(x, `${block}/self_attention_norm`, ([input]) => {
        const name = `${block}/self_attention`;
        for (const part of ["query", "key", "value"]) {
          own[part] = this.linear(input, `${name}/${part}`);
        }
        const [keys, values] = pastOf(path, layer);
        const isVisible = () => true;  // all of the path is earlier
        const isOff = (head) => encoded.off.has(`decoder ${layer} ${head}`);
        const found = attend(own.query, keys, values, { numHeads, isVisible, isOff });
        own.weights = found.weights;
        return [this.linear(found.output, `${name}/attention_output`)];
      });
      x = this.sublayer(x, `${block}/cross_attention_norm`, ([input]) => {
        const name = `${block}/cross_attention`;
        const { keys, values } = encoded.cross[layer];
        const { isVisible } = encoded;
        const isOff = (head) => encoded.off.has(`cross ${layer} ${head}`);
        own.crossQuery = this.linear(input, `${name}/query`);
        const found = attend(own.crossQuery, keys, values, { numHeads, isVisible, isOff });
        own.crossWeights = found.weights;
        return [this.linear(found.output, `${name}/attention_output`)];
      });
      x = this.feedForward(x, block);
    }
    [x] = this.finalNorm(x, "decoder");
    node.logits = this.shared
      ? linear(x, this.weights["encoder/embedding/embeddings"])
      : this.linear(x, "output");
    return node;
  }
}

// The nodes from the begin token to a node.
function pathTo(node) {
  const path = [];
  for (; node; node = node.parent) path.unshift(node);
  return path;
}

// Keys and values of the target so far.
function pastOf(path, layer) {
  return ["key", "value"].map((part) => path.map((node) => node.layers[layer][part]));
}
