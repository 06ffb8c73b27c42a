//! The HTML report, a single file without external resources.

use super::axis::Scale;
use super::conclusions::conclusions;
use super::contents::{PLOTS, Report};
use super::draw::Drawing;
use super::markdown::{crowd, facts, head, marks, notes};
use super::style;
use super::view::{View, heading};
use crate::metric::Metric;
use crate::summary::{Figures, Row, ServerResult, Table};
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Returns the text of the HTML file.
pub(super) fn html(
    report: &Report<'_>,
    sections: &[(View, Vec<Drawing>)],
    profile_drawings: &[Vec<Drawing>],
) -> String {
    let suite = &report.setup.suite;
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (suite.title) }
                style { (PreEscaped(CSS)) (PreEscaped(style::DARK)) }
            }
            body {
                h1 { (suite.title) }
                p { (suite.about) }
                h2 { "Summary" }
                ul { @for sentence in conclusions(report) { li { (sentence) } } }
                (contents(report, sections))
                h2 #setup { "Setup" }
                ul { @for fact in facts(report) { li { (fact) } } }
                (servers(report))
                h2 #plots { "Plots" }
                p {
                    "Scale: "
                    label { input type="radio" name="scale" value="linear" checked; " linear" }
                    " "
                    label { input type="radio" name="scale" value="logarithmic"; " logarithmic" }
                    ". Points are medians, and bars range from the lowest run to the highest. A cross marks a "
                    "server with a failed run, a ring one with runs that other programs disturbed. Move the pointer to a point to read its value. The "
                    "plots are also files in "
                    code { (PLOTS) "/" } "."
                }
                @for (number, (view, drawings)) in sections.iter().enumerate() {
                    (section(number, view, drawings))
                }
                h2 #courses { "Percentiles and rates over time" }
                @for (table, drawings) in report.summary.tables.iter().zip(profile_drawings) {
                    @if !drawings.is_empty() {
                        h3 { (heading(&table.place)) }
                        div.plots {
                            @for drawing in drawings { figure { (PreEscaped(drawing.inline())) } }
                        }
                    }
                }
                h2 #tables { "Tables" }
                @for (number, table) in report.summary.tables.iter().enumerate() {
                    (numbers(report, number, table))
                }
                h2 #loads { "Loads" }
                (loads(report))
                div id="tip" {}
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
    .into_string()
}

/// Returns links to all parts of the page.
fn contents(report: &Report<'_>, sections: &[(View, Vec<Drawing>)]) -> Markup {
    html! {
        h2 { "Contents" }
        ul {
            li { a href="#setup" { "Setup" } ", " a href="#servers" { "servers" } }
            li { a href="#plots" { "Plots" }
                ul { @for (number, (view, _)) in sections.iter().enumerate() {
                    li { a href={ "#plot-" (number) } { (view.heading) } }
                } }
            }
            li { a href="#courses" { "Percentiles and rates over time" } }
            li { a href="#tables" { "Tables" }
                ul { @for (number, table) in report.summary.tables.iter().enumerate() {
                    li { a href={ "#table-" (number) } { (heading(&table.place)) } }
                } }
            }
            li { a href="#loads" { "Loads" } }
        }
    }
}

fn servers(report: &Report<'_>) -> Markup {
    let setup = report.setup;
    html! {
        h2 #servers { "Servers" }
        div.wide { table {
            tr { th { "server" } th { "version" } th { "command" } }
            @for (index, (server, entry)) in setup.servers.iter().zip(&setup.suite.servers).enumerate() {
                tr {
                    td.name { (swatch(index)) (server.name)
                        @if server.name == setup.suite.baseline { " (baseline)" } }
                    @if server.program.is_some() {
                        td { (server.version.as_deref().unwrap_or("unknown")) }
                    } @else {
                        td.absent { "not installed" }
                    }
                    td { code { (typed(&entry.command)) } }
                }
            }
        } }
    }
}

/// Joins the words of a command with spaces, and writes an empty word as `""`.
fn typed(command: &[String]) -> String {
    let word = |word: &String| if word.is_empty() { "\"\"".to_owned() } else { word.clone() };
    command.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn swatch(index: usize) -> Markup {
    html! { span.swatch style={ "background:" (style::hex(style::server(index))) } {} }
}

fn section(number: usize, view: &View, drawings: &[Drawing]) -> Markup {
    html! {
        h3 id={ "plot-" (number) } { (view.heading) }
        div.plots {
            @for drawing in drawings {
                @let class = match drawing.scale {
                    Scale::Linear => "linear",
                    Scale::Logarithmic => "logarithmic",
                };
                figure class=(class) { (PreEscaped(drawing.inline())) }
            }
        }
    }
}

fn numbers(report: &Report<'_>, number: usize, table: &Table) -> Markup {
    let metrics = table.metrics();
    html! {
        h3 id={ "table-" (number) } { (heading(&table.place)) }
        @if let Some(crowd) = crowd(report, table) { p.notes { (crowd) } }
        div.wide { table {
            tr { th { "server" } @for metric in &metrics { th.number { (head(*metric)) } } }
            @for (index, row) in table.rows.iter().enumerate() {
                @if !matches!(row.standing, ServerResult::Absent) {
                    tr {
                        td.name { (swatch(index)) (row.server)
                            @if !marks(row).is_empty() { br; small { (marks(row)) } } }
                        (cells(row, &metrics))
                    }
                }
            }
        } }
        ul.notes { @for note in notes(table) { li { (note) } } }
    }
}

fn cells(row: &Row, metrics: &[Metric]) -> Markup {
    html! {
        @match &row.standing {
            ServerResult::Absent => {},
            ServerResult::Failed(why) => td.failed colspan=(metrics.len().max(1)) { "failed: " (why) },
            ServerResult::Figures(figures) => {
                @for metric in metrics { td.number { (number(figures, *metric)) } }
            }
        }
    }
}

fn number(figures: &Figures, metric: Metric) -> Markup {
    let ratio = figures.ratios.get(&metric);
    let interval = figures.intervals.get(&metric);
    let unit = metric.unit();
    html! {
        @if let Some(spread) = figures.spreads.get(&metric) {
            (unit.number(spread.median))
            @if let Some(ratio) = ratio { " " b { (format!("{ratio:.2}×")) } }
            @if figures.runs > 1 {
                br;
                small { (unit.number(spread.min)) " – " (unit.number(spread.max)) }
            }
            @if let Some(interval) = interval.filter(|_| ratio.is_some()) {
                br;
                small {
                    @if interval.contains_one() { "no difference: " }
                    (format!("{:.2} – {:.2} ×", interval.low, interval.high))
                }
            }
        } @else { "–" }
    }
}

fn loads(report: &Report<'_>) -> Markup {
    let workloads = &report.setup.suite.workloads;
    html! {
        div.wide { table {
            tr { th { "workload" } th { "phase" } th { "larder bench" } }
            @for workload in workloads { @for phase in &workload.phases {
                tr {
                    td { (workload.name) }
                    td { (phase.name) }
                    td { code {
                        @if let Some(load) = &phase.load { (load) }
                        @if let Some(fill) = &phase.fill { "fill --data-sizes " (fill.value_bytes) }
                    } }
                }
            } }
        } }
    }
}

const CSS: &str = include_str!("report.css");
const SCRIPT: &str = include_str!("report.js");
