// Figures as people read them.

const PLACES = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const NOTHING = "–";

export const count = (value) => (value === null || value === undefined ? NOTHING : PLACES.format(value));

// Three significant digits, never an exponent.
export function figure(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 100) return PLACES.format(Math.round(value));
  return value.toFixed(size >= 10 ? 1 : size >= 1 ? 2 : 3).replace(/\.?0+$/, "");
}

export function seconds(value) {
  if (value === null || value === undefined) return NOTHING;
  return value < 1 ? `${figure(value * 1000)} ms` : `${figure(value)} s`;
}

export const percent = (part) =>
  part === null || part === undefined ? NOTHING : `${figure(Math.round(part * 1000) / 10)}%`;

export function bytes(value) {
  if (value === null || value === undefined) return NOTHING;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${figure(value)} ${units[unit]}`;
}

export function duration(value) {
  const whole = Math.floor(value);
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}

// A token as one can see it: blanks and line breaks have marks.
export const visible = (text) =>
  text === "" ? "(empty)" : text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/\r/g, "␍");
