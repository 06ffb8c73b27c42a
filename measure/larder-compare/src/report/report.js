const logarithmic = document.querySelector("input[value=logarithmic]");
const rescale = () => document.body.classList.toggle("log", logarithmic.checked);
for (const radio of document.querySelectorAll("input[name=scale]")) radio.addEventListener("change", rescale);
rescale();
const tip = document.getElementById("tip");
for (const spot of document.querySelectorAll(".spot")) {
  // The tooltip appears at once, without the browser's delay.
  const title = spot.querySelector("title");
  const words = title.textContent;
  title.remove();
  spot.setAttribute("aria-label", words);
  spot.addEventListener("mousemove", (event) => {
    tip.textContent = words;
    tip.style.display = "block";
    const right = event.clientX + 14 + tip.offsetWidth > window.innerWidth;
    tip.style.left = `${event.clientX + (right ? -14 - tip.offsetWidth : 14)}px`;
    tip.style.top = `${event.clientY + 14}px`;
  });
  spot.addEventListener("mouseleave", () => { tip.style.display = "none"; });
}
