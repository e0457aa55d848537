// One feature of the output of a query and head: scores, scale, mask, softmax, weighted mean.

// The table's rows {key, product, score, visible, power, weight, value, part}, and their sums.
function walkOf({ queries, keys, values, isVisible }, query, head, place) {
  const size = queries[query].length / model.numHeads, from = head * size;
  const width = values[0].length / model.numHeads;
  const rows = keys.map((key, at) => {
    const score = model.score(queries[query], key, from, from + size);
    const value = values[at][head * width + place];
    return { product: score * Math.sqrt(size), score, visible: isVisible(query, at), value };
  });
  const most = Math.max(...rows.filter(({ visible }) => visible).map(({ score }) => score));
  let total = 0, output = 0;
  for (const row of rows) {
    row.power = row.visible ? Math.exp(row.score - most) : 0;
    total += row.power;
  }
  for (const row of rows) {
    row.weight = total ? row.power / total : 0;
    row.part = row.weight * row.value;
    output += row.part;
  }
  return { rows, size, most, total, output };
}

function showWalk(attention, query) {
  const head = Math.max(0, state.head);
  const width = attention.values[0].length / model.numHeads;
  state.place = Math.min(state.place, width - 1);
  const walk = walkOf(attention, query, head, state.place);
  const isOff = state.off.has(`${state.view} ${state.layer} ${head}`);
  const name = text().headName(state.layer, head);
  find("#walkHelp").textContent = text().walkHelp[model.kind]({
    query: attention.rows[query], head: name, size: walk.size, place: state.place,
  }) + (isOff ? ` ${text().headOff}` : "")
    + (state.head === MEAN ? ` ${text().ofMean}` : "");
  const place = find("#place");
  place.max = width - 1;
  if (document.activeElement !== place) place.value = state.place;
  const isScaled = model.kind === "transformer";
  const [keyName, ...names] = text().columns(isScaled);
  const header = make("tr", {}, make("th", { scope: "col" }, keyName),
    ...names.map((each) => make("th", { scope: "col" }, each)));
  const rows = walk.rows.map((row, at) => {
    const { product, score, visible, power, weight, value, part } = row;
    const cells = [...(isScaled ? [decimals(product)] : []), decimals(score),
      visible ? text().visible : text().hidden, decimals(power), percent(weight),
      decimals(value), decimals(part)];
    const line = make("tr", { className: visible ? "" : "hidden" },
      make("th", { scope: "row", dir: "auto" }, attention.columns[at]),
      ...cells.map((cell) => make("td", {}, cell)));
    const shaded = line.children[line.children.length - 3];
    shaded.className = "weight";
    fillBy(weight, shaded);
    return line;
  });
  const sums = [...(isScaled ? [""] : []), "", "", decimals(walk.total), walk.total ? "100%" : "0%", "",
    decimals(walk.output)];
  const footer = make("tr", {}, make("th", { scope: "row" }, text().total),
    ...sums.map((cell) => make("td", {}, cell)));
  find("#numbers").replaceChildren(make("thead", {}, header), make("tbody", {}, ...rows),
    make("tfoot", {}, footer));
  showSum(walk, attention);
}

// The key of the greatest weight, in one line.
function showSum({ rows, size, most, total }, attention) {
  const at = rows.reduce((found, row, i) => (row.weight > rows[found].weight ? i : found), 0);
  const { product, score, power, weight } = rows[at];
  find("#sum").textContent = !total ? "" : text().sum[model.kind]({
    key: attention.columns[at], size, weight: percent(weight), product: decimals(product),
    score: decimals(score), most: decimals(most), power: decimals(power), total: decimals(total),
  });
}
