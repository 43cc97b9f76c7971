
// The map of the embeddings: points on a canvas, a card with the thumbnail of the one that is pointed at.
function startMap(section) {
  const data = JSON.parse(section.querySelector("template.points").content.textContent);
  const sheets = [...section.querySelectorAll("template.sheet")];
  const canvas = section.querySelector("canvas.points");
  const card = section.querySelector(".mapcard");
  const legend = section.querySelector(".maplegend");
  const note = section.querySelector(".mapnote");
  const search = section.querySelector("input[type=search]");
  const output = section.querySelector("output");
  const pen = canvas.getContext("2d");
  const NONE = 2 ** 32 - 1, GREY = -1, LISTED = 24;
  const RIGHT = 0, WRONG = 1;

  const bytes = (text) => Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  const wide = (text) => new Uint32Array(bytes(text).buffer);
  const layouts = data.layouts.map((one) => ({ ...one, x: new Uint16Array(bytes(one.x).buffer), y: new Uint16Array(bytes(one.y).buffer) }));
  const label = wide(data.label), domain = wide(data.domain), taken = wide(data.taken), nearest = wide(data.nearest);
  const state = bytes(data.state), missing = new Set(data.missing), count = data.paths.length;
  const rows = new Map([...document.querySelectorAll(".query[data-path]")].map((row) => [row.dataset.path, row]));
  const checked = (name) => section.querySelector(`input[name="${name}"]:checked`)?.value;

  let layout = layouts[0], colour = checked("map-colour") ?? "label";
  let scale = 1, left = 0, top = 0, fitted = 1, width = 0, height = 0, ratio = 1;
  let hovered = -1, chosen = -1, kept = null, pending = false, whole = true; // kept: which points are highlighted; null: all

  // --- what a point looks like ---------------------------------------------------------------------------------------
  const shades = () => [...data.palette[isDark() ? "dark" : "light"]];
  const shapeNames = ["circle", "square", "triangle", "diamond"];
  // A mark is one number: four times its colour plus its shape.
  const mark = (rank) => (rank % 8) * 4 + (rank >> 3) % 4, grey = GREY * 4;
  const colourOf = (one) => Math.floor(one / 4), shapeOf = (one) => ((one % 4) + 4) % 4;
  function look(i) {
    if (colour === "answer") return state[i] === RIGHT ? 0 : state[i] === WRONG ? 5 : grey;
    return mark(colour === "domain" ? domain[i] : label[i]);
  }
  function outline(where, shape, x, y, r) {
    where.beginPath();
    if (shape === 0) where.arc(x, y, r, 0, 7);
    else if (shape === 1) where.rect(x - 0.88 * r, y - 0.88 * r, 1.76 * r, 1.76 * r);
    else if (shape === 2) { where.moveTo(x, y - 1.2 * r); where.lineTo(x + 1.1 * r, y + 0.8 * r); where.lineTo(x - 1.1 * r, y + 0.8 * r); }
    else { where.moveTo(x, y - 1.3 * r); where.lineTo(x + 1.3 * r, y); where.lineTo(x, y + 1.3 * r); where.lineTo(x - 1.3 * r, y); }
    where.closePath();
  }
  const paint = (which) => (which === GREY ? (isDark() ? "#7d8590" : "#9aa0a8") : shades()[which]);
  const radius = () => {
    const base = count < 400 ? 4.5 : count < 2000 ? 3.6 : count < 7000 ? 2.6 : 1.9;
    return Math.min(7, base * Math.pow(scale / fitted, 0.3));
  };
  function stamps(r) {
    const made = new Map();
    return (one) => {
      if (!made.has(one)) {
        const size = Math.ceil((2.8 * r + 2) * ratio), tile = document.createElement("canvas");
        tile.width = tile.height = size;
        const context = tile.getContext("2d");
        context.scale(ratio, ratio);
        outline(context, shapeOf(one), size / ratio / 2, size / ratio / 2, r);
        context.fillStyle = paint(colourOf(one));
        context.fill();
        made.set(one, tile);
      }
      return made.get(one);
    };
  }

  // --- drawing -------------------------------------------------------------------------------------------------------
  const place = (i) => [layout.x[i] * scale + left, layout.y[i] * scale + top];
  function draw() {
    pending = false;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const r = radius(), stamp = stamps(r);
    const layer = (take, alpha) => {
      pen.globalAlpha = alpha;
      for (let i = 0; i < count; i++) {
        if (!take(i)) continue;
        const x = layout.x[i] * scale + left, y = layout.y[i] * scale + top;
        if (x < -9 || y < -9 || x > width + 9 || y > height + 9) continue;
        const tile = stamp(look(i)), side = tile.width / ratio;
        pen.drawImage(tile, x - side / 2, y - side / 2, side, side);
      }
    };
    if (kept) {
      layer((i) => !kept.has(i), 0.13);
      layer((i) => kept.has(i), 1);
    } else if (colour === "answer") { // mistakes lie on top, or they would drown
      layer((i) => state[i] !== WRONG, 0.6);
      layer((i) => state[i] === WRONG, 0.95);
    } else layer(() => true, 0.85);
    pen.globalAlpha = 1;
    for (const i of [chosen, hovered]) if (i >= 0) ring(i, r);
    section.dataset.drawn = String(count);
  }
  function ring(i, r) {
    const [x, y] = place(i), ink = getComputedStyle(canvas).color;
    pen.strokeStyle = ink;
    if (nearest[i] !== NONE) {
      const [nx, ny] = place(nearest[i]);
      pen.lineWidth = 1.25;
      pen.setLineDash(label[i] === label[nearest[i]] ? [] : [4, 4]);
      pen.beginPath(); pen.moveTo(x, y); pen.lineTo(nx, ny); pen.stroke();
      pen.setLineDash([]);
      pen.beginPath(); pen.arc(nx, ny, r + 2.5, 0, 7); pen.stroke();
    }
    const one = look(i);
    outline(pen, shapeOf(one), x, y, r + 2.5);
    pen.fillStyle = paint(colourOf(one));
    pen.fill();
    pen.lineWidth = 2;
    pen.stroke();
  }
  const redraw = () => { if (!pending) { pending = true; requestAnimationFrame(() => { if (pending) draw(); }); } };

  function fit(list) {
    const margin = 18;
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    for (const i of list ?? layout.x.keys()) {
      x0 = Math.min(x0, layout.x[i]); x1 = Math.max(x1, layout.x[i]); y0 = Math.min(y0, layout.y[i]); y1 = Math.max(y1, layout.y[i]);
    }
    const most = list ? 12 * fitted : Infinity;
    scale = Math.min((width - 2 * margin) / Math.max(x1 - x0, 1), (height - 2 * margin) / Math.max(y1 - y0, 1), most);
    left = width / 2 - (scale * (x0 + x1)) / 2;
    top = height / 2 - (scale * (y0 + y1)) / 2;
    whole = !list;
    if (whole) fitted = scale;
    show();
  }
  function zoom(factor, x = width / 2, y = height / 2) {
    const next = Math.min(Math.max(scale * factor, fitted / 2), fitted * 400), change = next / scale;
    left = x - (x - left) * change;
    top = y - (y - top) * change;
    scale = next;
    whole = false;
    show();
  }
  function pan(x, y) { left += x; top += y; whole = false; show(); }
  function resize() {
    const box = canvas.getBoundingClientRect();
    if (!box.width || !box.height) return;
    const first = width === 0, middle = [(width / 2 - left) / scale, (height / 2 - top) / scale];
    ratio = Math.min(devicePixelRatio || 1, 3);
    width = box.width; height = box.height;
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    if (first || whole) fit();
    else { left = width / 2 - middle[0] * scale; top = height / 2 - middle[1] * scale; show(); }
  }

  // --- the card ------------------------------------------------------------------------------------------------------
  const loaded = new Map(); // few sheets stay decoded
  async function sheetOf(i) {
    const number = Math.floor(i / data.sprite.perSheet), text = sheets[number]?.content.textContent.trim();
    if (!text) return null;
    if (!loaded.has(number)) {
      const image = new Image();
      image.src = `data:image/${data.sprite.kind};base64,${text}`;
      loaded.set(number, image.decode().then(() => image));
      if (loaded.size > 6) loaded.delete(loaded.keys().next().value);
    }
    return loaded.get(number);
  }
  function write(selector, text) {
    const element = card.querySelector(selector);
    element.textContent = text;
    element.hidden = text === "";
  }
  function verdict(i) {
    if (state[i] === RIGHT) return "Nearest picture: same class";
    if (state[i] === WRONG) return `Taken for ${data.classes[taken[i]]}`;
    return taken[i] === NONE ? "Not a query" : "Not counted: no other picture of its class";
  }
  function show() {
    const i = hovered >= 0 ? hovered : chosen;
    card.hidden = i < 0;
    redraw();
    if (i < 0) { delete card.dataset.row; return; }
    if (card.dataset.row !== String(i)) fill(i);
    const [x, y] = place(i), box = card.getBoundingClientRect();
    const right = x + 14 + box.width <= width ? x + 14 : Math.max(x - 14 - box.width, 4);
    card.style.left = `${Math.min(Math.max(right, 4), Math.max(width - box.width - 4, 4))}px`;
    card.style.top = `${Math.min(Math.max(y - box.height / 2, 4), Math.max(height - box.height - 4, 4))}px`;
  }
  async function fill(i) {
    card.dataset.row = String(i);
    card.dataset.state = String(state[i]);
    write("strong", data.classes[label[i]]);
    write(".domain", data.domains.length > 1 && data.domains[domain[i]] ? `domain ${data.domains[domain[i]]}` : "");
    write(".verdict", verdict(i));
    write("code", data.paths[i]);
    card.querySelector("code").title = data.root + data.paths[i];
    const row = rows.get(data.root + data.paths[i]), link = card.querySelector("a");
    link.hidden = !row;
    if (row) link.href = `#${row.id}`;
    const thumb = card.querySelector("canvas"), context = thumb.getContext("2d");
    context.clearRect(0, 0, thumb.width, thumb.height);
    delete thumb.dataset.row;
    const sheet = missing.has(i) ? null : await sheetOf(i).catch(() => null);
    if (card.dataset.row !== String(i)) return;
    thumb.hidden = !sheet;
    if (sheet) {
      const { side, columns, perSheet } = data.sprite, at = i % perSheet;
      context.imageSmoothingQuality = "high";
      context.drawImage(sheet, (at % columns) * side, Math.floor(at / columns) * side, side, side, 0, 0, thumb.width, thumb.height);
      thumb.dataset.row = String(i);
    }
  }

  // --- finding points ------------------------------------------------------------------------------------------------
  function closest(x, y, reach) {
    let best = -1, least = reach * reach;
    for (let i = 0; i < count; i++) {
      if (kept && !kept.has(i)) continue;
      const dx = layout.x[i] * scale + left - x, dy = layout.y[i] * scale + top - y, far = dx * dx + dy * dy;
      if (far < least) { least = far; best = i; }
    }
    return best;
  }
  function beside(i, dx, dy) {
    const [x, y] = place(i);
    let best = -1, least = Infinity;
    for (let j = 0; j < count; j++) {
      if (j === i || (kept && !kept.has(j))) continue;
      const [px, py] = place(j), along = (px - x) * dx + (py - y) * dy, across = Math.abs((px - x) * dy - (py - y) * dx);
      if (along <= 0 || across > along) continue;
      const far = along + 2 * across;
      if (far < least) { least = far; best = j; }
    }
    return best;
  }
  function choose(i) {
    chosen = i;
    hovered = -1;
    if (i >= 0) {
      const [x, y] = place(i);
      if (x < 12 || y < 12 || x > width - 12 || y > height - 12) { left += width / 2 - x; top += height / 2 - y; }
    }
    show();
  }

  // --- highlighting --------------------------------------------------------------------------------------------------
  function highlight(take, text) {
    kept = null;
    if (take) {
      kept = new Set();
      for (let i = 0; i < count; i++) if (take(i)) kept.add(i);
    }
    output.textContent = text ?? "";
    if (kept && chosen >= 0 && !kept.has(chosen)) chosen = -1;
    for (const button of legend.querySelectorAll("button")) button.setAttribute("aria-pressed", "false");
    show();
  }
  search.addEventListener("input", () => {
    const text = search.value.trim().toLowerCase();
    if (text === "") return highlight(null);
    const hits = new Set();
    data.classes.forEach((name, number) => { if (name.toLowerCase().includes(text)) hits.add(number); });
    highlight((i) => hits.has(label[i]));
    const classes = new Set([...kept].map((i) => label[i])).size;
    output.textContent = `${kept.size.toLocaleString("en")} picture${kept.size === 1 ? "" : "s"} of ${classes} class${classes === 1 ? "" : "es"}`;
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && kept?.size) { fit([...kept]); event.preventDefault(); }
  });

  // --- the legend ----------------------------------------------------------------------------------------------------
  function entry(text, one, take) {
    const item = document.createElement("li"), button = document.createElement("button"), icon = document.createElement("canvas");
    icon.width = icon.height = 28;
    const context = icon.getContext("2d");
    outline(context, shapeOf(one), 14, 14, 9);
    context.fillStyle = paint(colourOf(one));
    context.fill();
    button.type = "button";
    button.dataset.shape = shapeNames[shapeOf(one)];
    button.setAttribute("aria-pressed", "false");
    button.append(icon, text);
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      search.value = "";
      highlight(on ? take : null);
      button.setAttribute("aria-pressed", String(on));
    });
    item.append(button);
    legend.append(item);
  }
  function tally(values) {
    const found = new Map();
    for (const value of values) found.set(value, (found.get(value) ?? 0) + 1);
    return found;
  }
  function list() {
    legend.replaceChildren();
    const amount = (n) => n.toLocaleString("en");
    if (colour === "answer") {
      const numbers = tally(state);
      [["right", 0], ["wrong", 5], ["not asked", grey]].forEach(([text, how], code) => {
        if (numbers.get(code)) entry(`${text} ${amount(numbers.get(code))}`, how, (i) => state[i] === code);
      });
      return;
    }
    const of = colour === "domain" ? domain : label, names = colour === "domain" ? data.domains : data.classes, numbers = tally(of);
    const used = [...numbers.keys()].sort((a, b) => a - b);
    for (const code of used.slice(0, LISTED)) entry(`${names[code] || "none"} ${amount(numbers.get(code))}`, mark(code), (i) => of[i] === code);
    if (used.length > LISTED) {
      const more = document.createElement("li");
      more.className = "more";
      more.textContent = `and ${amount(used.length - LISTED)} more; colours and shapes repeat after 32, so search for a class to see it alone`;
      legend.append(more);
    }
  }

  // --- pointer, wheel, keyboard --------------------------------------------------------------------------------------
  const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  const fingers = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, at(event));
    moved = fingers.size > 1 ? 99 : 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event), before = fingers.get(event.pointerId);
    if (!before) {
      const found = closest(x, y, 14);
      if (found !== hovered) { hovered = found; show(); }
      return;
    }
    const others = [...fingers.entries()].filter(([id]) => id !== event.pointerId);
    if (others.length) {
      const [ox, oy] = others[0][1], was = Math.hypot(before[0] - ox, before[1] - oy), is = Math.hypot(x - ox, y - oy);
      if (was > 0) zoom(is / was, (x + ox) / 2, (y + oy) / 2);
    }
    moved += Math.abs(x - before[0]) + Math.abs(y - before[1]);
    if (moved > 4) { hovered = -1; pan((x - before[0]) / (others.length ? 2 : 1), (y - before[1]) / (others.length ? 2 : 1)); }
    fingers.set(event.pointerId, [x, y]);
  });
  const lift = (event) => {
    if (fingers.delete(event.pointerId) && event.type === "pointerup" && moved <= 4) choose(closest(...at(event), event.pointerType === "mouse" ? 14 : 28));
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointerleave", () => { if (hovered >= 0) { hovered = -1; show(); } });
  canvas.addEventListener("dblclick", (event) => zoom(2, ...at(event)));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return; // the page scrolls
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0018)), ...at(event));
  }, { passive: false });

  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const arrow = arrows[event.key];
    if (arrow && event.shiftKey) pan(-60 * arrow[0], -60 * arrow[1]);
    else if (arrow) {
      const next = chosen < 0 ? closest(width / 2, height / 2, Infinity) : beside(chosen, ...arrow);
      if (next >= 0) choose(next);
    } else if (event.key === "+" || event.key === "=") zoom(1.5, ...(chosen < 0 ? [] : place(chosen)));
    else if (event.key === "-") zoom(1 / 1.5, ...(chosen < 0 ? [] : place(chosen)));
    else if (event.key === "0") fit();
    else if (event.key === "n" && chosen >= 0 && nearest[chosen] !== NONE) choose(nearest[chosen]);
    else if (event.key === "Enter" && chosen >= 0 && !card.querySelector("a").hidden) card.querySelector("a").click();
    else if (event.key === "Escape") { choose(-1); }
    else return;
    event.preventDefault();
  });
  for (const button of section.querySelectorAll("button[data-zoom]")) {
    button.addEventListener("click", () => (button.dataset.zoom === "fit" ? fit() : zoom(Number(button.dataset.zoom))));
  }
  for (const input of section.querySelectorAll("input[name=map-colour]")) {
    input.addEventListener("change", () => { colour = input.value; search.value = ""; list(); highlight(null); });
  }
  for (const input of section.querySelectorAll("input[name=map-layout]")) {
    input.addEventListener("change", () => { layout = layouts[Number(input.value)]; note.textContent = layout.note; fit(); });
  }
  addEventListener("themechange", () => { list(); draw(); });

  note.textContent = layout.note;
  list();
  new ResizeObserver(resize).observe(canvas);
  resize();
  draw();
  performance.mark("map-drawn");
  // For the console, and for tests: where a point is on the canvas, and which is chosen.
  section.map = { place, choose, fit, zoom, kept: () => kept, chosen: () => chosen, scale: () => scale / fitted };
}
for (const section of document.querySelectorAll("section.map")) startMap(section);
