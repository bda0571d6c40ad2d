// Marks of what is done, in the table of labs and on the map. They stay in this browser; nothing is sent anywhere.
(function () {
  "use strict";

  const KEY = "breakfix:done";
  const table = document.querySelector(".catalogue table");
  if (!table) return;

  function read() {
    try {
      const found = JSON.parse(localStorage.getItem(KEY));
      return new Set(Array.isArray(found) ? found.filter((id) => /^lab\d\d$/.test(id)) : []);
    } catch {
      return new Set(); // somebody else's value, or no storage here
    }
  }

  function write() {
    try {
      localStorage.setItem(KEY, JSON.stringify([...done].sort()));
    } catch {
      // the marks then last as long as the page
    }
  }

  const done = read(), boxes = new Map();

  function show() {
    boxes.forEach((box, id) => {
      box.checked = done.has(id);
      box.closest("tr").classList.toggle("done", box.checked);
    });
    document.querySelectorAll(".track-map a").forEach((box) => {
      const is = done.has(box.dataset.lab);
      box.classList.toggle("done", is);
      box.querySelector(".mark").textContent = is ? "✓ done" : "";
    });
    count.textContent = `${[...boxes.keys()].filter((id) => done.has(id)).length} of ${boxes.size} done`;
  }

  function exportMarks() {
    const link = document.createElement("a");
    const text = JSON.stringify({ done: [...done].sort() }, null, 1) + "\n";
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = "breakfix-done.json";
    link.click();
    URL.revokeObjectURL(link.href);
  }

  function clear() {
    if (!confirm("Take all marks off?")) return;
    done.clear();
    write();
    show();
  }

  function button(name, act) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = name;
    made.addEventListener("click", act);
    return made;
  }

  const head = document.createElement("th"), count = document.createElement("output");
  head.textContent = "done";
  head.scope = "col";
  table.tHead.rows[0].append(head);
  for (const row of table.tBodies[0].rows) {
    const id = row.cells[0].textContent.trim(), box = document.createElement("input");
    box.type = "checkbox";
    box.setAttribute("aria-label", `${id} is done`);
    box.addEventListener("change", () => {
      done[box.checked ? "add" : "delete"](id);
      write();
      show();
    });
    boxes.set(id, box);
    row.insertCell().append(box);
  }
  const bar = document.createElement("div");
  bar.className = "sheet-controls";
  bar.append(count, button("Export", exportMarks), button("Clear", clear));
  table.closest(".catalogue").append(bar);
  addEventListener("storage", (event) => {
    if (event.key !== KEY) return;
    done.clear();
    read().forEach((id) => done.add(id));
    show();
  });
  show();
})();
