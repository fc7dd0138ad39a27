"""The page's style sheet: light and dark, phone and desktop, nothing fetched from anywhere."""

from __future__ import annotations

CSS = """
:root{--paper:#fff;--back:#f6f7f9;--ink:#1f2430;--muted:#5c6470;--line:#dfe3e8;
--ours:#1f6feb;--eager:#b35900;--good:#1a7f37;--bad:#c62828;--owed:#8a6100;color-scheme:light dark}
@media (prefers-color-scheme:dark){:root{--paper:#1b1f27;--back:#12151b;--ink:#e6e9ee;
--muted:#a0a8b4;--line:#343b47;--ours:#6ea8fe;--eager:#f0a35e;--good:#4cc26b;--bad:#ff7b72;
--owed:#e0b040}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:12px 16px 48px}
header{border-left:8px solid var(--tone);padding:4px 14px;margin-bottom:16px}
h1{font-size:24px;line-height:1.25;margin:0}
h2{font-size:18px;margin:0 0 8px}
h3{font-size:14px;margin:16px 0 4px;color:var(--muted);font-weight:600}
p{margin:4px 0}
section{background:var(--paper);border:1px solid var(--line);border-radius:8px;padding:14px 16px;
margin:0 0 16px}
.PASSED{--tone:var(--good)}.FAILED{--tone:var(--bad)}
.OWED,.INTERRUPTED,.UNCHECKED{--tone:var(--owed)}
.verdict{color:var(--tone);font-weight:700}
.muted{color:var(--muted);font-weight:400}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:4px 12px 4px 0;border-bottom:1px solid var(--line);
vertical-align:top}
th{color:var(--muted);font-weight:600;white-space:nowrap}
td{white-space:nowrap}
td.wide{white-space:normal;overflow-wrap:anywhere;width:99%}
pre{margin:8px 0 0;padding:10px 12px;background:var(--back);border-left:4px solid var(--bad);
overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere;font-size:13px}
code{font-size:13px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:12px;
margin-top:8px}
.charts svg{width:100%;height:auto}
summary{cursor:pointer;color:var(--muted)}
"""
