"use strict";
// The page works as text without this; what is added here: tables of numbers, one step at a time, the map's
// keys, the lines' numbers and links, the nudge, and the theme.

const { arrays, labels, nudges } = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
root.classList.add("js");

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// ---- numbers ----------------------------------------------------------------------------------------------

const MINUS = "\u2212";
const signed = (text) => (/^-[0.]+$/.test(text) ? text.slice(1) : text).replace("-", MINUS);

function formatter(entry) {
  // Returns a way to write the array's numbers with few digits, and the power of ten taken out of them.
  if (entry.kind !== "f") return [String, 0];
  const sizes = entry.data.filter(Number.isFinite).map(Math.abs);
  const largest = Math.max(...sizes, 0);
  let power = largest > 0 ? Math.floor(Math.log10(largest)) : 0;
  if (power >= -1 && power <= 3) {
    const digits = power < 0 ? 3 : power === 0 ? 2 : 1;
    return [(v) => signed(v.toFixed(digits)), 0];
  }
  return [(v) => signed((v / 10 ** power).toFixed(2)), power];
}

function axisName(axis, index) {
  if (axis === "B") return "sequence " + index;
  if (axis === "H") return "head " + index;
  return axis + " " + index;
}

function labelOf(entry, axis, index, sequence) {
  const name = entry.axes[axis];
  if (axis === 0 && entry.rows.length) return entry.rows[index];
  if (axis > 0 && name === "use" && entry.rows.length) return entry.rows[index];
  if (name === "B") return axisName("B", index);
  if (name === "T" || name === "Tq" || name === "Tk") {
    return entry.axes.length === 2 && entry.axes[0] === "B" ? String(index) : labels.T[sequence ?? 0][index];
  }
  if (labels[name] && Array.isArray(labels[name])) return labels[name][index];
  return name === "1" ? "" : String(index);
}

function table(entry, start, lead, { write, largest, marks, others, right }) {
  const [rows, columns] = entry.shape.length > 1 ? entry.shape.slice(-2) : [1, entry.shape[0]];
  const rowAxis = entry.shape.length - 2, columnAxis = entry.shape.length - 1;
  const sequence = entry.axes[0] === "B" ? (lead[0] ?? 0) : undefined;
  // Rows named for places, columns named by "use": the names belong to the columns then.
  const named = entry.axes[0] !== "use" && entry.axes[1] === "use";
  const heads = entry.axes[columnAxis] === "HD" ? labels.head_dim : 0;
  const made = element("table");
  const caption = lead.map((index, axis) => axisName(entry.axes[axis], index)).join(", ");
  if (caption) made.append(element("caption", {}, caption));
  const head = element("thead");
  if (heads) {
    const line = element("tr", {}, element("th"));
    for (let h = 0; h * heads < columns; h++) {
      line.append(element("th", { colspan: heads, scope: "colgroup", ...(h ? { class: "edge" } : {}) }, "head " + h));
    }
    head.append(line);
  }
  if (columns > 1 || rows === 1 || named) {
    const line = element("tr", {}, element("th"));
    for (let c = 0; c < columns; c++) {
      const edge = heads && c && c % heads === 0 ? { class: "edge" } : {};
      line.append(element("th", { scope: "col", ...edge }, named ? entry.rows[c] : labelOf(entry, columnAxis, c, sequence)));
    }
    head.append(line);
  }
  made.append(head);
  const body = element("tbody");
  for (let r = 0; r < rows; r++) {
    const isSum = entry.axes[0] === "use" && entry.rows[r] === "their sum";
    const line = element("tr", isSum ? { class: "last" } : {});
    let label = "";
    if (rowAxis >= 0) label = named ? labels.N[r] : labelOf(entry, rowAxis, r, sequence);
    line.append(element("th", { scope: "row" }, label));
    for (let c = 0; c < columns; c++) {
      const value = entry.data[start + r * columns + c];
      const classes = heads && c && c % heads === 0 ? ["edge"] : [];
      const cell = element("td");
      if (typeof value === "string") {
        cell.textContent = value === "-inf" ? MINUS + "∞" : value === "inf" ? "∞" : value;
        classes.push("out");
      } else {
        cell.textContent = value === 0 ? "0" : write(value);
        if (entry.kind === "f" && largest > 0 && value !== 0) {
          classes.push(value > 0 ? "p" : "n");
          cell.style.setProperty("--t", (100 * Math.min(Math.abs(value) / largest, 1) ** 0.6).toFixed(1));
        }
        if (value === 0) classes.push("zero");
        if (entry.kind === "f") {
          const opinions = others.map(([source, array]) => `\n${source} ${signed(String(array.data[start + r * columns + c]))}`);
          cell.title = (others.length ? "backward " : "") + signed(String(value)) + opinions.join("");
        }
        if (right && Math.abs(value - right.data[start + r * columns + c]) > 1e-5 * largest) classes.push("differs");
      }
      if (marks && marks.data[start / columns + r] === c) classes.push("came");
      if (classes.length) cell.className = classes.join(" ");
      line.append(cell);
    }
    body.append(line);
  }
  made.append(body);
  return element("div", { class: "scroll" }, made);
}

function fillOne(place) {
  const { array, mark, right, others } = place.dataset;
  const entry = arrays[array];
  place.dataset.filled = "";
  if (!entry.shape.length) {
    place.append(element("b", { class: "scalar" }, signed(String(entry.data[0]))));
    return;
  }
  // What is wrong is written and tinted as what is right, so that the two can be compared.
  const model = right ? arrays[right] : entry;
  const [write, power] = formatter(model);
  const options = {
    write,
    largest: Math.max(...model.data.filter(Number.isFinite).map(Math.abs), 0),
    marks: mark && arrays[mark],
    others: (others ? others.split(";") : []).map((other) => other.split("|")).map(([source, id]) => [source, arrays[id]]),
    right: right && model,
  };
  if (power) place.append(element("div", { class: "scale" }, "all × 10", element("sup", {}, signed(String(power)))));
  const leading = entry.shape.slice(0, -2);
  const size = entry.shape.slice(-2).reduce((a, b) => a * b, 1);
  const count = leading.reduce((a, b) => a * b, 1);
  for (let i = 0; i < count; i++) {
    const lead = [];
    for (let axis = leading.length - 1, rest = i; axis >= 0; axis--) {
      lead.unshift(rest % leading[axis]);
      rest = Math.floor(rest / leading[axis]);
    }
    if (i && lead.length > 1 && lead.at(-1) === 0) place.append(element("div", { class: "break" }));
    place.append(table(entry, i * size, lead, options));
  }
}

function fill(within) {
  // Tables are made when they come into sight: all at once they are tens of thousands of cells.
  for (const place of within.querySelectorAll(".array:not([data-filled])")) {
    if (!place.closest("details:not([open])")) fillOne(place);
  }
  // What is wider than its place can be scrolled with the keyboard, and what is not is no stop on the way.
  for (const place of within.querySelectorAll(".scroll, .formula, .wrongline")) {
    if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
  }
}

document.addEventListener("toggle", (event) => event.target.open && fill(event.target), true);

// ---- one step at a time -----------------------------------------------------------------------------------

const boxes = [...document.querySelectorAll("#map .box")];
const sections = [...document.querySelectorAll("main > .step")];
let current = null;

function show(moveFocus) {
  const wanted = decodeURIComponent(location.hash.slice(1)).replace(/-(backward|title)$/, "");
  const section = sections.find((s) => s.id === wanted) ?? sections[0];
  const backward = location.hash.endsWith("-backward");
  for (const other of sections) other.classList.toggle("current", other === section);
  for (const box of boxes) {
    const isOpen = box.hash === (backward ? location.hash : "#" + section.id);
    box.classList.toggle("open", isOpen);
    if (isOpen) box.setAttribute("aria-current", "step");
    else box.removeAttribute("aria-current");
    box.tabIndex = isOpen ? 0 : -1;
  }
  if (section !== current) {
    current = section;
    prepare(section);
  }
  if (moveFocus) {
    const target = document.getElementById(backward ? section.id + "-backward" : section.id + "-title");
    target.focus({ preventScroll: true });
    (backward ? target : section).scrollIntoView({ block: "start" });
  }
}

function prepare(section) {
  fill(section);
  for (const values of section.querySelectorAll(".values:empty")) {
    choose(values.previousElementSibling.querySelector(".dot"));
  }
  for (const place of section.querySelectorAll(".nudge:empty")) buildNudge(place, nudges[place.dataset.step]);
}

window.addEventListener("hashchange", () => show(true));
document.addEventListener("click", (event) => {
  // A second click on the open box changes no hash, and should still lead there.
  const link = event.target.closest?.('a[href^="#"]');
  if (link && link.hash === location.hash && !link.classList.contains("skip")) show(true);
});

// ---- the map's keys ---------------------------------------------------------------------------------------

const rows = [...document.querySelectorAll("#map li")].map((row) => [...row.querySelectorAll(".box")]);

function neighbour(box, key) {
  const row = rows.findIndex((r) => r.includes(box));
  const column = rows[row].indexOf(box);
  const step = { ArrowUp: -1, ArrowDown: 1 }[key] ?? 0;
  const across = { ArrowLeft: -1, ArrowRight: 1 }[key] ?? 0;
  const target = rows[Math.min(Math.max(row + step, 0), rows.length - 1)];
  return target[Math.min(Math.max(column + across, 0), target.length - 1)];
}

document.getElementById("map").addEventListener("keydown", (event) => {
  if (!event.key.startsWith("Arrow") || !event.target.classList.contains("box")) return;
  event.preventDefault();
  const next = neighbour(event.target, event.key);
  for (const box of boxes) box.tabIndex = box === next ? 0 : -1;
  next.focus();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  (boxes.find((box) => box.classList.contains("open")) ?? boxes[0]).focus();
});

// ---- lines of code ----------------------------------------------------------------------------------------

function choose(dot) {
  const codes = dot.closest(".codes");
  for (const other of codes.querySelectorAll(".dot")) other.setAttribute("aria-pressed", String(other === dot));
  const place = codes.nextElementSibling;
  const line = dot.closest(".line");
  place.replaceChildren(element("p", {}, "line " + line.querySelector(".number").textContent + " of " +
    dot.closest(".code").querySelector("figcaption code").textContent));
  for (const value of dot.dataset.values.split(";")) {
    const [name, shape, array] = value.split("|");
    place.append(
      element("h5", {}, element("code", {}, name), " ", element("span", { class: "shape" }, shape)),
      element("div", { class: "array", "data-array": array, "data-name": name }));
  }
  fill(place);
}

function light(line, on) {
  for (const link of line.dataset.links.split(" ")) {
    for (const other of line.closest(".codes").querySelectorAll(`.line[data-links~="${link}"]`)) {
      other.classList.toggle("lit", on);
    }
  }
}

document.addEventListener("click", (event) => {
  const dot = event.target.closest?.(".dot") ?? event.target.closest?.(".line")?.querySelector(".dot");
  if (dot && !getSelection().toString()) choose(dot);
});
for (const [start, end] of [["mouseover", "mouseout"], ["focusin", "focusout"]]) {
  for (const [kind, on] of [[start, true], [end, false]]) {
    document.addEventListener(kind, (event) => {
      const line = event.target.closest?.(".line.linked");
      if (line) light(line, on);
    });
  }
}

// ---- nudge ------------------------------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 640, HEIGHT = 250, LEFT = 58, RIGHT = 14, TOP = 14, BOTTOM = 34;

function drawing(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const digits = (value) => Number.isNaN(value) ? "–" : signed(Math.abs(value) >= 0.001 || value === 0 ? value.toFixed(4) : value.toExponential(2));

function buildNudge(place, choices) {
  const buttons = choices.map((choice) => element("button", { type: "button", "aria-pressed": "false" }, choice.label));
  const stage = element("div");
  const pick = (index) => {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === index)));
    stage.replaceChildren(...nudgeFigure(choices[index]));
  };
  buttons.forEach((button, i) => button.addEventListener("click", () => pick(i)));
  place.append(element("div", { class: "choices" }, ...buttons), stage);
  pick(0);
}

function nudgeFigure({ label, value, gradient, values, losses }) {
  const middle = (values.length - 1) / 2, start = losses[middle];
  const low = Math.min(...losses), high = Math.max(...losses), room = 0.12 * (high - low || 1);
  const x = (v) => LEFT + ((v - values[0]) / (values.at(-1) - values[0])) * (WIDTH - LEFT - RIGHT);
  const y = (l) => TOP + ((high + room - l) / (high - low + 2 * room)) * (HEIGHT - TOP - BOTTOM);
  const tangent = (v) => start + gradient * (v - value);
  const picture = drawing("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `loss against ${label}` });
  const clip = "clip-" + label.replace(/\W/g, "-");
  const inside = drawing("clipPath", { id: clip });
  inside.append(drawing("rect", { x: LEFT, y: TOP, width: WIDTH - LEFT - RIGHT, height: HEIGHT - TOP - BOTTOM }));
  picture.append(inside);
  const floor = HEIGHT - BOTTOM;
  picture.append(drawing("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: floor, y2: floor }));
  for (const v of [values[0], value, values.at(-1)]) {
    const anchor = v === value ? "middle" : v < value ? "start" : "end";
    picture.append(drawing("text", { x: x(v), y: floor + 20, "text-anchor": anchor }, signed(v.toFixed(2))));
  }
  for (const l of [low, high]) {
    picture.append(drawing("text", { x: LEFT - 8, y: y(l) + 4, "text-anchor": "end" }, l.toFixed(3)));
  }
  picture.append(drawing("line", {
    class: "tangent", "clip-path": `url(#${clip})`, x1: x(values[0]), y1: y(tangent(values[0])),
    x2: x(values.at(-1)), y2: y(tangent(values.at(-1))) }));
  picture.append(drawing("polyline", { class: "curve", points: values.map((v, i) => `${x(v)},${y(losses[i])}`).join(" ") }));
  const secant = drawing("line", { class: "secant" }), moved = drawing("circle", { class: "moved", r: 6 });
  picture.append(secant, drawing("circle", { class: "here", cx: x(value), cy: y(start), r: 4.5 }), moved);

  const slider = element("input", { type: "range", min: 0, max: values.length - 1, step: 1, "aria-label": `move ${label}` });
  slider.value = middle;
  const output = element("output");
  const update = () => {
    const i = Number(slider.value), v = values[i], loss = losses[i];
    const slope = i === middle ? NaN : (loss - start) / (v - value);
    for (const [key, number] of Object.entries({ x1: x(value), y1: y(start), x2: x(v), y2: y(loss) })) secant.setAttribute(key, number);
    moved.setAttribute("cx", x(v));
    moved.setAttribute("cy", y(loss));
    slider.setAttribute("aria-valuetext", `${label} at ${digits(v)}, loss ${digits(loss)}`);
    const facts = [["the number", v], ["the loss", loss], ["the tangent says", tangent(v)],
      ["gradient at the start", gradient], ["slope to here", slope]];
    output.replaceChildren(...facts.map(([name, number]) => element("span", {}, name, element("b", {}, digits(number)))));
  };
  slider.addEventListener("input", update);
  update();
  return [picture, slider, output];
}

// ---- theme and print --------------------------------------------------------------------------------------

document.getElementById("theme").addEventListener("click", () => {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme ?? system) === "dark" ? "light" : "dark";
});
window.addEventListener("beforeprint", () => sections.forEach(prepare));

show(location.hash.length > 1);
