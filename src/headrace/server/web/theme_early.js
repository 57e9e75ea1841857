// Applies the remembered theme before the first paint. A classic script on purpose: a module would run after it, and the
// page would flash. Knows one key of localStorage; theme.js writes it.
try {
  const theme = JSON.parse(localStorage.getItem("headrace.theme"));
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // storage is blocked or damaged: the system's preference decides
}
