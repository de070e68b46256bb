"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const one = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const n = data.labels.length, cells = data.cells;  // cells: unmasked pairs (row, column)

  // weights: 16 bits each, for every layer, head and allowed cell
  const bytes = Uint8Array.from(atob(data.weights), (char) => char.charCodeAt(0));
  const weight = (layer, head, index) => {
    const at = 2 * ((layer * data.heads + head) * cells.length + index);
    return (bytes[at] | (bytes[at + 1] << 8)) / 65535;
  };

  const bins = data.bins;
  const binOf = (value) => {
    const found = bins.findIndex((end) => value < end);
    return found < 0 ? bins.length : found;
  };
  const shade = (value, binned) => binned ? data.shades[binOf(value)] : Math.sqrt(value);

  // ---- attention ----
  const picture = one("#attention-map"), squares = all(".cell", picture), numbered = squares[0].textContent !== "";
  const layerChoice = one("#layer"), headChoice = one("#head");
  const binned = one("#bins"), status = one("#attention-status");
  const buttons = [];
  function showHead() {
    const layer = Number(layerChoice.value), head = Number(headChoice.value);
    cells.forEach((_, index) => {
      const value = weight(layer, head, index), ink = shade(value, binned.checked);
      squares[index].style.setProperty("--share", ink.toFixed(3));
      squares[index].classList.toggle("strong", ink > 0.6);
      if (numbered) squares[index].textContent = value.toFixed(2);
    });
    status.textContent = describe(layer, head);
    picture.setAttribute("aria-label", status.textContent);
    one("#scale").hidden = binned.checked;
    one("#bin-legend").hidden = !binned.checked;
    buttons.forEach((button) => button.setAttribute("aria-pressed",
      String(Number(button.dataset.layer) === layer && Number(button.dataset.head) === head)));
  }
  function describe(layer, head) {
    let best = 0, at = 0;
    cells.forEach(([row, column], index) => {
      if (row !== column && weight(layer, head, index) > best) { best = weight(layer, head, index); at = index; }
    });
    const name = `Layer ${layer + 1}, head ${head + 1}`;
    if (!best) return `${name}: every token attends only to itself.`;
    const [row, column] = cells[at];
    return `${name}: the largest weight on an earlier token is ${named(row)} to ${named(column)}, ${best.toFixed(2)}.`;
  }
  const named = (place) => `\u2068${data.labels[place]}\u2069 (${place})`;
  squares.forEach((square, index) => {
    square.addEventListener("pointerenter", () => {
      const [row, column] = cells[index];
      const value = weight(Number(layerChoice.value), Number(headChoice.value), index);
      status.textContent = `${named(row)} attends to ${named(column)}: ${value.toFixed(3)}`;
    });
  });
  picture.addEventListener("pointerleave", () => {
    status.textContent = describe(Number(layerChoice.value), Number(headChoice.value));
  });
  [layerChoice, headChoice, binned].forEach((control) => control.addEventListener("change", showHead));

  // ---- all heads ----
  const grid = one("#heads");
  grid.style.gridTemplateColumns = `auto repeat(${data.heads}, minmax(0, ${data.heads > 8 ? 46 : 62}px))`;
  for (let layer = 0; layer < data.layers; layer++) {
    const name = document.createElement("span");
    name.className = "row-name";
    name.textContent = layer + 1;
    grid.append(name);
    for (let head = 0; head < data.heads; head++) {
      const button = document.createElement("button"), canvas = document.createElement("canvas");
      button.type = "button";
      button.dataset.layer = layer;
      button.dataset.head = head;
      button.setAttribute("aria-label", `Show layer ${layer + 1}, head ${head + 1}`);
      canvas.width = canvas.height = n;
      button.append(canvas);
      button.addEventListener("click", () => { layerChoice.value = layer; headChoice.value = head; showHead(); });
      grid.append(button);
      buttons.push(button);
    }
  }
  function paintHeads() {
    const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
    const colour = [1, 3, 5].map((at) => parseInt(ink.slice(at, at + 2), 16));
    buttons.forEach((button) => {
      const context = one("canvas", button).getContext("2d"), image = context.createImageData(n, n);
      cells.forEach(([row, column], index) => {
        const at = 4 * (row * n + column);
        image.data.set(colour, at);
        image.data[at + 3] = 255 * Math.sqrt(weight(Number(button.dataset.layer), Number(button.dataset.head), index));
      });
      context.putImageData(image, 0, 0);
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintHeads);

  // ---- chosen token: next tokens and hidden state ----
  const chips = all(".chip");
  function showToken(place) {
    chips.forEach((chip) => chip.setAttribute("aria-pressed", String(Number(chip.dataset.token) === place)));
    showNext(place);
    showState(place);
  }
  const part = (tag, className, text) => {
    const made = document.createElement(tag);
    made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  function showNext(place) {
    const { candidates, low, high, mean } = data.next[place];
    const probabilities = one("#probabilities"), logits = one("#logits");
    const top = Math.max(...candidates.map((item) => item.probability), 1e-9);
    const share = (logit) => 100 * (logit - low) / ((high - low) || 1);
    probabilities.replaceChildren();
    logits.replaceChildren();
    candidates.forEach((item) => {
      const actual = place + 1 < n && data.ids[place + 1] === item.id ? " actual" : "";
      const bar = part("span", "track"), fill = part("span", "fill");
      fill.style.width = `${100 * item.probability / top}%`;
      bar.append(fill);
      probabilities.append(part("span", `token${actual}`, item.text), bar, part("span", "", percent(item.probability)));
      const line = part("span", "track"), rod = part("span", "rod"), spot = part("span", "spot");
      rod.style.width = `${share(item.logit)}%`;
      spot.style.left = `calc(6px + (100% - 12px) * ${share(item.logit) / 100})`;
      line.append(rod, spot);
      logits.append(part("span", `token${actual}`, item.text), line, part("span", "", item.logit.toFixed(2)));
    });
    one("#next-status").textContent = `After ${named(place)}: logits from ${low.toFixed(2)} to ` +
      `${high.toFixed(2)}, mean ${mean.toFixed(2)}.` +
      (place + 1 < n ? ` \u25c2 marks the actual next token, ${named(place + 1)}.` : "");
  }
  const percent = (value) => value >= 0.0995 ? `${(100 * value).toFixed(0)} %` : value >= 0.001 ?
    `${(100 * value).toFixed(1)} %` : "< 0.1 %";
  const boxes = all("#dimensions .signed");
  function showState(place) {
    const states = data.states[place];
    const largest = Math.max(...states.flat().map(Math.abs), 1e-9);
    states.flat().forEach((value, index) => {
      boxes[index].classList.toggle("minus", value < 0);
      boxes[index].style.setProperty("--share", (Math.abs(value) / largest).toFixed(3));
      boxes[index].dataset.value = value;
    });
    one("#state-status").textContent =
      `State of ${named(place)}; full colour is \u00b1${largest.toPrecision(3)}.`;
  }
  boxes.forEach((box, index) => box.addEventListener("pointerenter", () => {
    const width = data.states[0][0].length;
    one("#state-status").textContent =
      `h${Math.floor(index / width)}, dimension ${index % width}: ${Number(box.dataset.value).toFixed(3)}`;
  }));
  chips.forEach((chip) => chip.addEventListener("click", () => showToken(Number(chip.dataset.token))));

  showHead();
  paintHeads();
  showToken(n - 1);
})();
