"use strict";

// What the pages share: elements, choices, and weights as shades, lines and pictures.
// A page has a function `text` of its texts in the chosen language, and a `state` with a view, a
// layer and a head.

const data = JSON.parse(document.getElementById("data").textContent);

const MEAN = -1;  // in place of a head: the mean of all heads
const LEAST = 0.0005;  // minimum weight shown as a number

const find = (selector) => document.querySelector(selector);

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

function showTexts(language) {
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
  for (const element of document.querySelectorAll("[data-text]")) {
    element.textContent = text()[element.dataset.text];
  }
  for (const element of document.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", text()[element.dataset.label]);
    if (element.tagName === "BUTTON") element.title = text()[element.dataset.label];
  }
}

// Choices

// A row of radio buttons for [value, label] of each choice.
function showChoices(form, name, choices, chosen, choose) {
  const buttons = choices.map(([value, label]) => {
    const input = make("input", { type: "radio", name, value, checked: value === chosen });
    input.addEventListener("change", () => choose(value));
    return make("label", { className: "choice" }, input, make("span", {}, label));
  });
  const legend = text()[name] ? [make("legend", {}, text()[name])] : [];
  const focused = document.activeElement?.name === name;
  const set = make("fieldset", { id: `choose-${name}` }, ...legend, ...buttons);
  set.hidden = choices.length < 2;
  const old = find(`#choose-${name}`);
  if (old) old.replaceWith(set);
  else form.append(set);
  if (focused) set.querySelector(":checked")?.focus();
}

// Choices of one of these views, of its layers and of its heads, for `chooseHead` of the page.
function showHeadChoices(form, views, depth, numHeads) {
  const { view, layer, head } = state;
  const numbers = (count) => Array.from({ length: count }, (_, at) => [at, at]);
  const heads = [...(numHeads > 1 ? [[MEAN, text().mean]] : []), ...numbers(numHeads)];
  showChoices(form, "view", views, view, (value) => chooseHead(value, layer, head));
  showChoices(form, "layer", numbers(depth), layer, (value) => chooseHead(view, value, head));
  showChoices(form, "head", heads, head, (value) => chooseHead(view, layer, value));
}

// Weights in [0, 1]

const mean = (heads) => heads[0].map((_, at) => (
  heads.reduce((sum, weights) => sum + weights[at], 0) / heads.length));

function percent(weight) {
  const share = 100 * weight;
  return `${share >= 9.95 || share < 0.05 ? Math.round(share) : share.toFixed(1)}%`;
}

// The square root makes small weights visible.
const shade = (weight) => Math.min(1, Math.sqrt(weight));

// Shades an element; a strong shade needs the other color of text.
const darkMode = matchMedia("(prefers-color-scheme: dark)");
function fillBy(weight, element) {
  element.style.setProperty("--weight", shade(weight));
  element.classList.toggle("strong", shade(weight) > (darkMode.matches ? 0.48 : 0.82));
}

function makeWord(tag, word, kind = "") {
  const text = make("span", { className: "text", dir: "auto" }, word || "\u00a0");
  return make(tag, { className: `word ${kind}` }, text);
}

// Shows a weight as the shade of a word and as a number below it.
function weigh(weight, word) {
  fillBy(weight, word);
  const number = word.querySelector(".number")
    ?? word.appendChild(make("span", { className: "number" }));
  number.textContent = weight < LEAST ? "" : percent(weight);
  word.classList.toggle("bare", weight < LEAST);
}

// Lines {queries, keys, weight, opacity} between words of these places; sideways between columns.
function drawLines(lines) {
  const svg = find("#lines"), box = svg.getBoundingClientRect();
  const sideways = find("#sentences").classList.contains("columns");
  const ends = (side, toX, toY) => [...find(side).children].map((word) => {
    const { left, width, top, height } = word.getBoundingClientRect();
    return [left + toX * width - box.left, top + toY * height - box.top];
  });
  const [from, to] = sideways
    ? [ends("#queries", 1, 0.5), ends("#keys", 0, 0.5)]
    : [ends("#queries", 0.5, 1), ends("#keys", 0.5, 0)];
  const visible = lines.filter(({ weight }) => weight >= 0.005);
  svg.replaceChildren(...visible.map(({ queries, keys, weight, opacity = shade(weight) }) => {
    const [x, y] = from[queries], [toX, toY] = to[keys];
    const turns = sideways
      ? `${(x + toX) / 2} ${y} ${(x + toX) / 2} ${toY}`
      : `${x} ${(y + toY) / 2} ${toX} ${(y + toY) / 2}`;
    const d = `M${x} ${y} C${turns} ${toX} ${toY}`;
    return draw("path", { d, "stroke-width": 1 + 5 * weight, opacity });
  }));
}

function color(name) {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return hex.match(/\w\w/g).map((digits) => parseInt(digits, 16));
}

// One pixel per weight, row by row; weights of other words than {side, index} are faint.
function picture(canvas, columns, weights, word) {
  [canvas.width, canvas.height] = [columns, weights.length / columns];
  canvas.classList.toggle("fine", Math.max(canvas.width, canvas.height) > 40);
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const [empty, full] = [color("--chip"), color("--shade")];
  weights.forEach((weight, place) => {
    const index = word?.side === "queries" ? Math.floor(place / columns) : place % columns;
    for (let part = 0; part < 3; part += 1) {
      image.data[4 * place + part] = empty[part] + (full[part] - empty[part]) * shade(weight);
    }
    image.data[4 * place + 3] = word && index !== word.index ? 110 : 255;
  });
  context.putImageData(image, 0, 0);
}

function headButton(name, choose, ...label) {
  const button = make("button", { type: "button", className: "head" }, make("canvas"), ...label);
  button.setAttribute("aria-label", name);
  button.addEventListener("click", choose);
  return button;
}
