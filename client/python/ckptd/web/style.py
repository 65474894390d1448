"""The style sheet, for light and dark, narrow and wide. There is no other file."""

STYLE = """
:root{color-scheme:light dark;--ink:#1b2430;--soft:#5b6b7f;--paper:#f4f6f9;--card:#fff;--line:#d5dce5;--blue:#1f6fb2;
--good:#1a7f4b;--bad:#b3261e;--remark:#8a5a00;--used:#1f6fb2;--copies:#7fb2dd;--lent:#c2a25a;--ready:#b7c2cf}
@media(prefers-color-scheme:dark){:root{--ink:#e3e9f0;--soft:#9aa9ba;--paper:#11161c;--card:#1a212a;--line:#303b48;
--blue:#6db3ef;--good:#5fd39a;--bad:#ff8a80;--remark:#f0b95b;--used:#6db3ef;--copies:#35638c;--lent:#a98d4b;--ready:#48535f}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.45 system-ui,sans-serif}
main{max-width:1100px;margin:auto;padding:16px}
h1{font-size:24px;margin:0}h2{font-size:17px;margin:0 0 8px;overflow-wrap:anywhere}h3{font-size:15px;margin:16px 0 6px}
p{margin:4px 0}a{color:var(--blue)}code{font-family:ui-monospace,monospace;font-size:13px}
header,section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:14px 16px;margin:0 0 14px}
header{border-left:6px solid var(--good)}header.bad{border-left-color:var(--bad)}header p{color:var(--soft)}
header.good h1{color:var(--good)}header.bad h1,.bad{color:var(--bad)}.remark{color:var(--remark)}
ul{margin:0;padding-left:18px}li{overflow-wrap:anywhere}li{margin:0 0 6px}.step{display:block;color:var(--ink)}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(240px,1fr));gap:6px 20px;margin:0}
dt{color:var(--soft);font-size:13px}dd{margin:0;overflow-wrap:anywhere}
.flight{margin:10px 0 0}progress{display:block;width:100%;height:12px;accent-color:var(--blue)}
.bar{display:block;width:100%;height:14px;background:var(--line);border-radius:4px;margin:6px 0}
.legend{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:2px 18px}.legend i{display:inline-block;width:10px;
height:10px;margin-right:6px}
rect.used{fill:var(--used)}rect.copies{fill:var(--copies)}rect.lent{fill:var(--lent)}rect.ready{fill:var(--ready)}
i.used{background:var(--used)}i.copies{background:var(--copies)}i.lent{background:var(--lent)}i.ready{background:var(--ready)}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(320px,100%),1fr));gap:10px;margin-top:12px}
figure{margin:0}figcaption{font-size:13px;color:var(--soft)}figure svg{width:100%;height:auto;font-size:11px}
svg text{fill:var(--soft)}.grid{stroke:var(--line)}.line{fill:none;stroke:var(--blue);stroke-width:1.2;opacity:.55}
.point{fill:var(--blue)}.failure path{stroke:var(--bad);stroke-width:2}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;width:100%}
th,td{text-align:left;padding:3px 10px 3px 0;border-bottom:1px solid var(--line);vertical-align:top;white-space:nowrap}
td:last-child{white-space:normal;min-width:220px}th{color:var(--soft);font-weight:600}tr.bad td{color:var(--bad)}
""".replace("\n", "")
