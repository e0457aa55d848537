// From a sentence to ids and back: words between white space, characters, or subwords by byte-pair
// encoding, as the vocabularies of Python's `tfattn.data` do it.

const UNKNOWN = 1, BEGIN = 2, END = 3;
const SPECIAL = 4;  // ids of ordinary words begin here
const SPACE = "\u2581";  // the symbol of a space in characters and subwords

// White space as in Python's `str.split`.
const WHITE = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/u;
const split = (sentence) => sentence.split(WHITE).filter((word) => word);

class Vocabulary {
  // kind: "words", "characters" or "subwords". skipsSpace: whether an unknown SPACE is no token.
  constructor({ kind, words, skipsSpace }) {
    Object.assign(this, { kind, words, skipsSpace });
    this.ids = new Map(words.map((word, id) => [word, id]).slice(SPECIAL));
  }

  // The tokens {text, id} of a sentence, without begin or end.
  encode(sentence) {
    const texts = { words: split, characters, subwords: this.subwords.bind(this) }[this.kind];
    const tokens = texts(sentence).map((text) => ({ text, id: this.ids.get(text) ?? UNKNOWN }));
    if (this.kind !== "subwords") {
      return tokens.filter(({ text, id }) => (
        !this.skipsSpace || text !== SPACE || id !== UNKNOWN));
    }
    const joined = [];  // consecutive unknown characters are one token
    for (const token of tokens) {
      const before = joined.at(-1);
      if (token.id === UNKNOWN && before?.id === UNKNOWN) before.text += token.text;
      else joined.push(token);
    }
    return joined;
  }

  // Merges the neighbors that were merged first in learning, the leftmost among equals, as long as
  // two neighbors are a subword. Ids are in the order of merges.
  subwords(sentence) {
    const plain = split(sentence.replace(/[\u2581\u2585]/g, "_").replaceAll("\0", " ")
      .replace(/\p{Surrogate}/gu, "?"));
    const parts = [...plain.map((word) => SPACE + word).join("")];
    const rank = (i) => this.ids.get(parts[i] + parts[i + 1]) ?? Infinity;
    for (;;) {
      let best = 0;
      for (let i = 1; i + 1 < parts.length; i += 1) if (rank(i) < rank(best)) best = i;
      if (parts.length < 2 || rank(best) === Infinity) return parts;
      parts.splice(best, 2, parts[best] + parts[best + 1]);
    }
  }

  // The sentence of ids up to the first end.
  decode(ids) {
    const end = ids.indexOf(END);
    const written = (end < 0 ? ids : ids.slice(0, end)).filter((id) => id && id !== BEGIN);
    const words = written.map((id) => this.words[id]);
    if (this.kind === "words") return words.join(" ");
    return split(words.join("").replaceAll(SPACE, " ")).join(" ");
  }
}

function characters(sentence) {
  return [...split(sentence.replaceAll(SPACE, "_")).join(SPACE)];
}
