"""The style sheet of a report's page: light, dark, narrow and on paper.

Blue, vermilion, green and orange are those of Okabe and Ito, which people who see colours
differently tell apart; the dark page has the lighter ones of the same hues.
"""

STYLE = """
:root{--page:#f6f7f9;--panel:#fff;--ink:#1a1f26;--soft:#5a6472;--rule:#dfe3e8;--grid:#e8ebef;
--used:#0072b2;--peak:#9fcbe6;--limit:#d55e00;--busy:#009e73;--warn:#8f5a00;--warn-bg:#fff4dc;
--bar:#e6eaee;--gap:#c3cad3}
@media screen and (prefers-color-scheme:dark){:root{--page:#101418;--panel:#181d23;--ink:#e8ebef;
--soft:#9ba6b3;--rule:#2c343d;--grid:#252c34;--used:#4aa0d8;--peak:#255a7c;--limit:#f08a3c;
--busy:#2fbf93;--warn:#f2c14e;--warn-bg:#2d2613;--bar:#2a323b;--gap:#47525e}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;color-scheme:light dark}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
font-variant-numeric:tabular-nums}
main{max-width:1180px;margin:0 auto;padding:28px 24px 56px}
h1{font-size:27px;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:19px;margin:44px 0 4px;letter-spacing:-.005em}
h3{font-size:15px;margin:0;overflow-wrap:anywhere}.apart{margin:22px 0 8px}
p{margin:4px 0 12px}a{color:inherit}
.soft{color:var(--soft)}.small-text{font-size:13px}
.note{max-width:76ch;color:var(--soft);margin:0 0 14px}
nav{display:flex;flex-wrap:wrap;gap:4px 18px;margin:14px 0 0;font-size:14px}
.panel{background:var(--panel);border:1px solid var(--rule);border-radius:10px;padding:16px 18px}
.warnings{background:var(--warn-bg);border:1px solid var(--warn);border-radius:10px;
padding:10px 18px;margin:16px 0 0}
.warnings ul{margin:4px 0;padding-left:20px}.warnings li{overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(6,1fr);gap:10px;margin:20px 0 12px}
.tile{padding:13px 14px}.tile b{display:block;font-size:25px;line-height:1.15;white-space:nowrap;
font-weight:650;letter-spacing:-.02em;margin:3px 0 4px}
.tile span{display:block;font-size:13px;color:var(--soft)}.tile .what{color:var(--ink)}
.strip{position:relative;height:7px;border-radius:4px;background:var(--busy);overflow:hidden;
margin:12px 0 5px;print-color-adjust:exact;-webkit-print-color-adjust:exact}
.strip .gap{position:absolute;top:0;bottom:0;background-color:var(--page)}
.legend{display:flex;flex-wrap:wrap;gap:2px 18px;font-size:13px;color:var(--soft);margin:2px 0 10px}
.legend i{display:inline-block;width:16px;height:9px;margin-right:6px;border-radius:2px;
print-color-adjust:exact;-webkit-print-color-adjust:exact}
.legend .m{width:3px;height:13px;border-radius:0;vertical-align:-2px}.legend.below{margin-top:22px}
.legend .l{height:0;border-top:2.5px solid;border-radius:0;vertical-align:3px}
.k-used{background:var(--used)}.k-peak{background:var(--peak)}.k-busy{background:var(--busy)}
.k-bar{background:var(--bar)}.k-mark{background:var(--ink)}.k-advice{background:var(--limit)}
.k-limit{color:var(--limit)}.k-allocated{color:var(--soft)}
.legend .k-allocated{border-top-style:dashed}
.gap,.k-gap{background-image:
repeating-linear-gradient(135deg,var(--gap) 0 1.5px,transparent 1.5px 5px);
print-color-adjust:exact;-webkit-print-color-adjust:exact}
.chart{padding:9px 4px 0 62px}
.chart .area{height:210px}.chart.gpus .area{height:92px}
.chart.gpus{margin-top:18px}
.area{position:relative}
.area svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible;display:block}
.area .gap{position:absolute;top:0;bottom:0}
.area.small{height:76px;border-bottom:1px solid var(--rule)}
.tick{position:absolute;left:0;right:0;border-top:1px solid var(--grid)}
.tick:first-child{border-color:var(--soft)}
.tick span{position:absolute;right:100%;margin-right:8px;transform:translateY(-50%);
font-size:12px;color:var(--soft);white-space:nowrap}
.times{position:relative;height:20px;font-size:12px;color:var(--soft)}
.times span{position:absolute;top:4px;transform:translateX(-50%);white-space:nowrap}
.times .first{transform:none}.times .last{transform:translateX(-100%)}
path{vector-effect:non-scaling-stroke;stroke:none;fill:none}
path.used{fill:var(--used)}path.peak{fill:var(--peak)}path.busy{fill:var(--busy)}
path.limit{stroke:var(--limit);stroke-width:2}
path.allocated{stroke:var(--soft);stroke-width:1.6;stroke-dasharray:5 3}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th{font-weight:600;text-align:right;color:var(--soft);font-size:12.5px;padding:6px 10px 6px 0;
border-bottom:1px solid var(--rule);vertical-align:bottom;line-height:1.3}
td{padding:6px 10px 6px 0;border-bottom:1px solid var(--grid);text-align:right;white-space:nowrap;
vertical-align:top}
tr:last-child td{border-bottom:0}
th.t,td.t{text-align:left;white-space:normal;overflow-wrap:anywhere;min-width:130px}
th.g,td.g{text-align:left;min-width:110px}
td.t small{display:block;color:var(--soft);font-size:12px}
td .bar{margin-top:6px}
.bar{display:block;height:8px;width:100%;min-width:70px;background:var(--bar);border-radius:4px;
overflow:hidden;print-color-adjust:exact;-webkit-print-color-adjust:exact}
.bar i{display:block;height:100%;background:var(--used)}
.bar.unused i{background:var(--limit)}.bar.busy i{background:var(--busy)}
.bullet{position:relative;display:block;height:14px;min-width:150px;margin-top:4px;
print-color-adjust:exact;-webkit-print-color-adjust:exact}
.bullet b,.bullet i,.bullet u,.bullet s{position:absolute;display:block;text-decoration:none}
.bullet b{top:2px;bottom:2px;left:0;background:var(--bar);border-radius:2px}
.bullet i{top:4px;bottom:4px;left:0;background:var(--used);border-radius:2px 0 0 2px}
.bullet u{top:2px;bottom:2px;width:2px;margin-left:-1px;background:var(--ink)}
.bullet s{top:-1px;bottom:-1px;width:3px;margin-left:-1.5px;background:var(--limit)}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(262px,1fr));gap:12px}
.card{padding:12px 14px;min-width:0}
.card h3{font-size:13.5px;line-height:1.35}
.card p{font-size:12.5px;line-height:1.4;color:var(--soft);margin:7px 0 0}
.card .where{margin:0 0 9px;overflow-wrap:anywhere}.whole{white-space:nowrap}
section.group{margin:14px 0 0}
.head{display:flex;flex-wrap:wrap;justify-content:space-between;gap:2px 18px;margin-bottom:6px}
.head span{color:var(--soft);font-size:13px}
.tag{display:inline-block;font-size:12px;line-height:1.2;border:1px solid var(--rule);
border-radius:9px;padding:1px 7px}
dl{display:grid;grid-template-columns:minmax(120px,190px) 1fr;gap:7px 18px;margin:12px 0;
max-width:96ch}
dt{font-weight:600}dd{margin:0;color:var(--soft)}
code{font:12.5px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere}
footer{margin-top:40px;padding-top:12px;border-top:1px solid var(--rule);font-size:13px;
color:var(--soft)}
@media (max-width:1080px){.tiles{grid-template-columns:repeat(3,1fr)}}
@media (max-width:640px){main{padding:18px 14px 40px}h1{font-size:22px}h2{margin-top:34px}
.panel{padding:12px}.chart{padding-left:54px}.chart .area{height:160px}.times .odd{display:none}
.tiles{grid-template-columns:1fr 1fr;gap:8px}.tile b{font-size:22px}dl{grid-template-columns:1fr;
gap:2px}dd{margin-bottom:8px}td.t+td.t,th.t+th.t{display:none}th.t,td.t{min-width:105px}}
@media print{:root{--page:#fff}html{font-size:12px}body{font-size:11.5px}
main{max-width:none;padding:0}nav{display:none}h2{margin-top:22px;break-after:avoid}
.panel{border-color:#ccc;padding:9px 11px;break-inside:avoid}section.group.panel{break-inside:auto}
.head,.legend,.chart{break-inside:avoid;break-after:avoid}tr,.card,.tile{break-inside:avoid}
thead{display:table-header-group}.scroll{overflow:visible}table{font-size:10px}
th,td.t small{font-size:9px}td,th{padding:3px 7px 3px 0}th.t,td.t{min-width:80px}
.bullet{min-width:90px}.bar{min-width:45px}.tiles{grid-template-columns:repeat(3,1fr);gap:7px}
.tile b{font-size:20px}.tile span,.legend{font-size:10.5px}
.grid{grid-template-columns:repeat(4,1fr);gap:6px}.chart .area{height:140px}
h1{font-size:21px}h2{font-size:15px}h3{font-size:12px}.small-text{font-size:10.5px}.note{max-width:none}
.card h3{font-size:10.5px}.card p{font-size:9.5px;margin-top:4px}.card .where{margin-bottom:5px}
.tick span,.times{font-size:9.5px}.chart{padding-left:52px}code{font-size:10px}dl{gap:4px 14px}
.area.small{height:54px}@page{size:A4;margin:13mm}}
"""
