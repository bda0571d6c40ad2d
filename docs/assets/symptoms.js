// The search of symptom.md: the same table and the same arithmetic as `breakfix symptom` (src/breakfix/symptoms.py).
// assets/symptoms-index.js, made when the site is built, holds the table; nothing is asked of any server.
(function () {
  "use strict";

  const ELSEWHERE = "elsewhere", LEAST = 0.21, LONGEST = 20000, FRAMES = 3;
  const EXCEPTION = /^[\w.]*(?:Error|Exception|Warning|Exit|Interrupt|Failed|Unsupported)\b/m;
  const FRAME = /^[ \t]*File "(?:[^"\n]*[/\\])?([^"\n]*?)(?:\.py)?", line \d+(?:, in ([\w.<>]+))?/gm;
  const NOISE = /(?:[A-Za-z]:)?(?:[\w.~<>-]*[/\\]){2,}[\w.~-]*|0x[0-9A-Fa-f]+/g;
  const VERSION = /\bv?\d+\.\d+\.\d+[\w.+-]*/g;
  const CHINESE = /[\u3040-\u30ff\u3400-\u9fff]+/g;
  const isChinese = (word) => /^[\u3040-\u30ff\u3400-\u9fff]/.test(word);

  function readable(text) {
    text = Array.from(text).slice(-LONGEST).join("").normalize("NFKC").replace(/[\r\u2028\u2029]/g, "\n");
    const frames = [...text.matchAll(FRAME)];
    if (frames.length) {
      const last = frames[frames.length - 1], end = last.index + last[0].length;
      const message = text.slice(end).search(EXCEPTION);
      if (message >= 0) {
        const names = frames.slice(-FRAMES).map((frame) => `${frame[1]} ${frame[2] || ""}`).join(" ");
        const told = text.slice(end + message);
        text = [names, text.slice(end, end + message), told, told].join("\n");
      }
    }
    text = text.replace(NOISE, " ").replace(VERSION, " versionnumber ");
    return text.replace(/([a-z])([A-Z])/g, "$1 $2").replace(/[0-9_]+/g, " ").toLowerCase();
  }

  function words(text) {
    const found = text.match(/[a-z]+/g) || [];
    for (const run of text.match(CHINESE) || []) {
      for (let i = 0; i < Math.max(1, run.length - 1); i++) found.push(run.slice(i, i + 2));
    }
    return found;
  }

  function pieces(word) {
    if (isChinese(word)) return [word];
    const padded = ` ${word} `, found = [];
    for (let i = 0; i < Math.max(1, padded.length - 3); i++) found.push(padded.slice(i, i + 4));
    return found;
  }

  function grams(text) {
    const said = words(readable(text)), english = said.filter((word) => !isChinese(word)), counts = new Map();
    const add = (gram) => counts.set(gram, (counts.get(gram) || 0) + 1);
    said.forEach((word) => pieces(word).forEach(add));
    for (let i = 1; i < english.length; i++) add(`${english[i - 1]}+${english[i]}`);
    return counts;
  }

  function vector(index, text) {
    const found = new Map();
    let square = 0;
    for (const [gram, n] of grams(text)) {
      if (!Object.hasOwn(index.grams, gram)) continue;
      const value = (1 + Math.log(n)) * (parseInt(index.grams[gram], 10) / 1000);
      found.set(gram, value);
      square += value * value;
    }
    for (const [gram, value] of found) found.set(gram, value / Math.sqrt(square));
    return found;
  }

  function weights(index, gram) {
    const row = index.grams[gram], coded = row.slice(row.indexOf(" ") + 1), found = [];
    for (let i = 0; i < coded.length; i += 2) {
      found.push([index.labels[coded.charCodeAt(i) - 48], (coded.charCodeAt(i + 1) - 80) * index.step]);
    }
    return found;
  }

  function scores(index, text) {
    const said = vector(index, text), found = {};
    if (said.size) index.labels.forEach((label, i) => { found[label] = index.shares[i]; });
    for (const [gram, value] of said) {
      for (const [label, weight] of weights(index, gram)) found[label] += value * weight;
    }
    return found;
  }

  function speaking(index, text, label, most = 4) {
    const said = vector(index, text), found = [];
    for (const word of new Set(words(readable(text)))) {
      let sum = 0;
      for (const piece of pieces(word)) {
        if (!said.has(piece)) continue;
        for (const [other, weight] of weights(index, piece)) if (other === label) sum += said.get(piece) * weight;
      }
      found.push([word, sum]);
    }
    return found.sort((a, b) => b[1] - a[1]).slice(0, most).filter((f) => f[1] > 0).map((f) => f[0]);
  }

  // {covered, matches: [{name, score, words}]}: the labs nearest to a text, best first
  function find(index, text, most = 3) {
    const all = scores(index, text), elsewhere = all[ELSEWHERE] || 0;
    delete all[ELSEWHERE];
    const names = Object.keys(all).sort((a, b) => all[b] - all[a] || (a < b ? -1 : 1)).slice(0, most);
    const matches = names.map((name) => ({ name, score: all[name], words: speaking(index, text, name) }));
    return { covered: names.length > 0 && all[names[0]] >= Math.max(LEAST, elsewhere), matches };
  }

  if (typeof module !== "undefined") { module.exports = { find, scores }; return; }

  function item(match, labs) {
    const line = document.createElement("li"), link = document.createElement("a"), why = document.createElement("small");
    link.href = labs[match.name].href;
    link.textContent = labs[match.name].title;
    why.textContent = match.words.length ? ` for: ${match.words.join(", ")}` : "";
    line.append(link, why);
    return line;
  }

  function show(box, answer) {
    const index = window.breakfixSymptoms, said = box.value.trim();
    answer.replaceChildren();
    if (!said) return;
    const found = find(index, said), told = document.createElement("p"), list = document.createElement("ol");
    told.textContent = found.covered ? "Begin with the first:" : "No lab covers this. The nearest:";
    list.append(...found.matches.map((match) => item(match, index.labs)));
    answer.append(told, ...(found.matches.length ? [list] : []));
  }

  document.addEventListener("DOMContentLoaded", () => {
    const box = document.getElementById("symptom"), answer = document.getElementById("symptom-answer");
    if (!box || !window.breakfixSymptoms) return;
    const asked = new URLSearchParams(window.location.search).get("text"); // q is the site's own search
    if (asked) box.value = asked;
    box.addEventListener("input", () => show(box, answer));
    box.disabled = false;
    show(box, answer);
  });
})();
