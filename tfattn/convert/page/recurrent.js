// Bahdanau's recurrent model, from ids to logits, as Python's
// `tfattn.BahdanauSeq2Seq` without dropout, with GRU cells and the additive score.

// Additive attention of one query over keys, both projected: score = v · tanh(query + key).
function additive(query, key, v) {
  let sum = 0;
  for (let i = 0; i < query.length; i += 1) sum += v[i] * Math.tanh(query[i] + key[i]);
  return sum;
}

const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const concatenate = (...vectors) => Float32Array.from(vectors.flatMap((vector) => [...vector]));

class Recurrent {
  // settings: numLayers of encoder and decoder, width, units, shared, and bidirectional.
  constructor(settings, weights) {
    Object.assign(this, settings, { weights, views: ["cross"], numHeads: 1, depth: 1 });
  }

  linear(x, name) {
    return linear(x, this.weights[`${name}/kernel`], this.weights[`${name}/bias`]);
  }

  embed(side, id) {
    const { data } = this.weights[`${this.shared ? "encoder" : side}/embedding/embeddings`];
    return data.slice(id * this.width, (id + 1) * this.width);
  }

  // A GRU's next state: the update gate keeps the old one, the reset gate forgets it.
  cell(x, state, name) {
    const units = state.length, biases = this.weights[`${name}/bias`].data;
    const [input, past] = [[x, "kernel"], [state, "recurrent_kernel"]].map(([vector, part], i) => (
      linear(vector, this.weights[`${name}/${part}`], {
        data: biases.subarray(3 * units * i, 3 * units * (i + 1)),
      })));
    return state.map((old, i) => {
      const update = sigmoid(input[i] + past[i]);
      const reset = sigmoid(input[units + i] + past[units + i]);
      const candidate = Math.tanh(input[2 * units + i] + reset * past[2 * units + i]);
      return update * old + (1 - update) * candidate;
    });
  }

  // The states after each vector of a sequence, in its order.
  run(sequence, name, backwards) {
    const order = backwards ? [...sequence].reverse() : sequence;
    let state = new Float32Array(this.units);
    const states = order.map((x) => { state = this.cell(x, state, name); return state; });
    return backwards ? states.reverse() : states;
  }

  // The source, read by the encoder; `hidden` and `off` as in `Transformer.encode`. The encoder
  // reads hidden tokens: no attention sees them.
  encode(ids, { hidden = new Set(), off = new Set() } = {}) {
    let memory = ids.map((id) => this.embed("encoder", id));
    const states = [];
    for (let layer = 0; layer < this.numLayers; layer += 1) {
      const forward = this.run(memory, `encoder/forward_cell_${layer}`, false);
      if (this.bidirectional) {
        const backward = this.run(memory, `encoder/backward_cell_${layer}`, true);
        memory = forward.map((state, i) => concatenate(state, backward[i]));
        const last = concatenate(forward.at(-1), backward[0]);
        states.push(this.linear(last, `initial_state_${layer}`).map(Math.tanh));
      } else {
        memory = forward;
        states.push(forward.at(-1));
      }
    }
    const keys = memory.map((vector) => linear(vector, this.weights["decoder/score/key_kernel"]));
    const isVisible = (i) => ids[i] !== PADDING && !hidden.has(i);
    return { ids, states, cross: [{ keys, values: memory }], isVisible, off };
  }

  score(query, key) {
    return additive(query, key, this.weights["decoder/score/score_kernel"].data);
  }

  // The hypothesis that extends `parent` by a token: a node of a tree, with the decoder's states.
  step(encoded, parent, token) {
    const node = { token, parent, position: parent ? parent.position + 1 : 0 };
    const before = parent ? parent.states : encoded.states;
    const crossQuery = linear(before.at(-1), this.weights["decoder/score/query_kernel"]);
    const [{ keys, values }] = encoded.cross;
    const { output: context, weights } = attend(crossQuery, keys, values, {
      numHeads: 1,
      isVisible: encoded.isVisible,
      isOff: () => encoded.off.has("cross 0 0"),
      score: this.score.bind(this),
    });
    node.layers = [{ crossQuery, crossWeights: weights }];
    const embedding = this.embed("decoder", token);
    let x = concatenate(embedding, context);
    node.states = before.map((state, layer) => {
      x = this.cell(x, state, `decoder/cell_${layer}`);
      return x;
    });
    const vector = this.linear(concatenate(x, context, embedding), "decoder/readout");
    const read = vector.map(Math.tanh);
    node.logits = this.shared
      ? linear(read, this.weights["encoder/embedding/embeddings"])
      : this.linear(read, "output");
    return node;
  }
}
