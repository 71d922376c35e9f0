// Verdicts on the cards of the page, by mouse and keyboard. `review` says of which items.
(function () {
  var cards = Array.prototype.slice.call(document.querySelectorAll(".card"));
  var place = "foils review " + review.fingerprint + " " + review.split;
  var keys = { a: "accept", r: "reject", u: "unsure" }, verdicts = {}, current = 0;
  function element(kind, text, attributes, parent) {
    var made = document.createElement(kind);
    made.textContent = text;
    Object.keys(attributes).forEach(function (name) { made.setAttribute(name, attributes[name]); });
    return parent.appendChild(made);
  }
  function content() {
    var own = {};
    review.items.forEach(function (item) {
      if (Object.prototype.hasOwnProperty.call(verdicts, item)) { own[item] = verdicts[item]; }
    });
    return { builder: review.builder, fingerprint: review.fingerprint, split: review.split, verdicts: own };
  }
  function show() {
    var counts = { accept: 0, reject: 0, unsure: 0 };
    cards.forEach(function (card, at) {
      var verdict = verdicts[review.items[at]];
      if (verdict) { counts[verdict] += 1; }
      card.setAttribute("aria-current", String(at === current));
      card.querySelectorAll("[data-verdict]").forEach(function (button) {
        button.setAttribute("aria-pressed", String(button.dataset.verdict === verdict));
      });
    });
    var done = counts.accept + counts.reject + counts.unsure;
    status.textContent = done + " of " + cards.length + " judged: " + counts.accept + " accepted, " + counts.reject + " rejected, " + counts.unsure + " unsure";
  }
  function go(at) {
    current = Math.max(0, Math.min(cards.length - 1, at));
    show();
    cards[current].scrollIntoView({ block: "center" });
  }
  function judge(at, verdict) {
    verdicts[review.items[at]] = verdict;
    // Where a browser stores nothing for files, verdicts are lost with the page.
    try { localStorage.setItem(place, JSON.stringify(content().verdicts)); } catch (error) { }
  }
  function save() {
    var link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(content(), null, 2) + "\n"], { type: "application/json" }));
    link.download = "foils_review.json";
    link.click();
  }
  try {
    var stored = JSON.parse(localStorage.getItem(place) || "{}");
    review.items.forEach(function (item) {
      if (Object.values(keys).indexOf(stored[item]) >= 0) { verdicts[item] = stored[item]; }
    });
  } catch (error) { }
  var bar = document.createElement("div"), main = document.querySelector("main");
  bar.className = "bar";
  main.insertBefore(bar, main.firstChild);
  element("button", "Save foils_review.json", { type: "button", id: "save" }, element("div", "", { "class": "filters" }, bar)).addEventListener("click", save);
  var status = element("p", "", { "class": "note", role: "status" }, bar);
  cards.forEach(function (card, at) {
    var group = element("div", "", { "class": "filters", role: "group", "aria-label": "Verdict" }, card);
    Object.values(keys).forEach(function (verdict) {
      element("button", verdict, { type: "button", "data-verdict": verdict }, group).addEventListener("click", function () { judge(at, verdict); current = at; show(); });
    });
  });
  document.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey) { return; }
    if (keys[event.key]) { judge(current, keys[event.key]); go(current + 1); }
    else if (event.key === "j") { go(current + 1); }
    else if (event.key === "k") { go(current - 1); }
    else if (event.key === "s") { save(); }
  });
  show();
})();
