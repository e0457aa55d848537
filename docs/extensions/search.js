// Words of a query, as docs/extensions/search.py has them for the index.
var splitQuery = (query) => {
  const runs = query.match(/[\u3400-\u9fff]+|(?:(?![\u3400-\u9fff])[\p{L}\p{N}_])+/gu) ?? [];
  const pairs = (run) => [...run.slice(1)].map((sign, place) => run[place] + sign);
  return runs.flatMap((run) => (/^[\u3400-\u9fff]{2}/.test(run) ? pairs(run) : [run]));
};

// Sphinx ranks a page by the best of the words, and by whether the page has it. Here it ranks by all
// of them, rare ones more, and by how often the page has them. A glossary comes before its equals,
// lists of pages and the other language come late.
const findPages = Search.performTermsSearch;
Search.performTermsSearch = (words, excluded) => {
  const { docnames, terms, titleterms } = Search._index;
  const pages = (index, word) => (Object.hasOwn(index, word) ? [index[word]].flat() : []);
  const rarity = (word) => Math.log(2 + docnames.length / (1 + pages(terms, word).length));
  const inChinese = (word) => /^[\u3400-\u9fff]/.test(word);
  const chinese = document.documentElement.lang === "zh-CN" || [...words].some(inChinese);
  const results = findPages(words, excluded);
  for (const result of results) {
    const [name] = result;
    const page = docnames.indexOf(name);
    const has = (index, word) => pages(index, word).includes(page);
    const rank = (word) =>
      (has(titleterms, word) ? Scorer.title : has(terms, word) ? Scorer.term : Scorer.partialTerm) +
      2 * [3, 5, 8, 12, 18, 27, 40, 60].filter((times) => has(terms, `${word}~${times}`)).length;
    const sum = (values) => values.reduce((left, right) => left + right, 0);
    const all = [...words];
    result[4] = sum(all.map((word) => rarity(word) * rank(word))) / sum(all.map(rarity));
    if (/glossary$/.test(name)) result[4] += 1;
    if (/(^|\/)index$|^guides$/.test(name)) result[4] -= 10;
    if (name.startsWith("zh/") !== chinese) result[4] -= 10;
  }
  return results;
};
