"""The script of a page, its own and complete: pictures get wider and narrower, links open what they lead to.

A frame of class "zoom" holds one SVG. One whose width is a share of the page (data-most says how many times as wide it
may become) only grows sideways; others grow as they are. Nothing of the page needs the script to be read.
"""

SCRIPT = """
(() => {
  const open = () => {
    const place = location.hash && document.getElementById(location.hash.slice(1));
    for (let e = place; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
    if (place) place.scrollIntoView();
  };
  const equip = frame => {
    const picture = frame.querySelector("svg"), isShare = picture.hasAttribute("data-most");
    const width = picture.getAttribute("width"), height = picture.getAttribute("height");
    const least = isShare ? 1 : 0.1, most = isShare ? Number(picture.dataset.most) : 4;
    let scale = 1;
    const zoom = (factor, x) => {
      const wanted = factor ? Math.min(most, Math.max(least, scale * factor)) : 1;
      const left = (frame.scrollLeft + x) * wanted / scale - x;
      const top = isShare ? frame.scrollTop : frame.scrollTop * wanted / scale;
      scale = wanted;
      picture.style.width = isShare ? 100 * scale + "%" : width * scale + "px";
      if (!isShare) picture.style.height = height * scale + "px";
      frame.scrollLeft = left;
      frame.scrollTop = top;
    };
    const bar = document.createElement("div");
    bar.className = "tools";
    const fit = isShare ? 0 : () => frame.clientWidth / width / scale;
    for (const [text, factor, title] of [
      ["−", 0.5, "narrower"], ["+", 2, "wider"], [isShare ? "all" : "fit", fit, "the whole width"]
    ]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.title = title;
      button.onclick = () => zoom(typeof factor === "function" ? factor() : factor, frame.clientWidth / 2);
      bar.append(button);
    }
    frame.before(bar);
    frame.addEventListener("wheel", event => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? 1.25 : 0.8, event.clientX - frame.getBoundingClientRect().left);
    }, { passive: false });
  };
  document.querySelectorAll(".zoom").forEach(equip);
  addEventListener("hashchange", open);
  open();
})();
"""
