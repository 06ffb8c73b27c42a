//! The report: one file that needs no other.

use super::draw::Drawing;
use super::figure::Scale;
use super::markdown::{facts, figure, head, heading, notes_of};
use super::style;
use super::view::View;
use super::{PLOTS, Report};
use crate::compare::metric::Metric;
use crate::compare::summary::{Row, Standing, Table};
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// The file's text.
pub(super) fn html(report: &Report<'_>, sections: &[(View, Vec<Drawing>)]) -> String {
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
                ul { @for fact in facts(report) { li { (fact) } } }
                (servers(report))
                h2 { "Plots" }
                p {
                    "Scale: "
                    label { input type="radio" name="scale" value="linear" checked; " linear" }
                    " "
                    label { input type="radio" name="scale" value="logarithmic"; " logarithmic" }
                    ". Points are medians, bars go from the least run to the most, a cross stands "
                    "for no figure. Point at one to read it. The same plots are files in "
                    code { (PLOTS) "/" } "."
                }
                @for (view, drawings) in sections { (section(view, drawings)) }
                h2 { "Tables" }
                @for table in &report.summary.tables { (numbers(table)) }
                h2 { "Loads" }
                (loads(report))
                div id="tip" {}
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
    .into_string()
}

fn servers(report: &Report<'_>) -> Markup {
    let setup = report.setup;
    html! {
        h2 { "Servers" }
        div.wide { table {
            tr { th { "server" } th { "version" } th { "command" } }
            @for (place, (server, entry)) in setup.servers.iter().zip(&setup.suite.servers).enumerate() {
                tr {
                    td { (swatch(place)) (server.name)
                        @if server.name == setup.suite.baseline { " (baseline)" } }
                    @if server.program.is_some() {
                        td { (server.version.as_deref().unwrap_or("unknown")) }
                    } @else {
                        td.absent { "not installed" }
                    }
                    td { code { (entry.command.join(" ")) } }
                }
            }
        } }
    }
}

fn swatch(place: usize) -> Markup {
    html! { span.swatch style={ "background:" (style::hex(style::server(place))) } {} }
}

fn section(view: &View, drawings: &[Drawing]) -> Markup {
    html! {
        h3 { (view.heading) }
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

fn numbers(table: &Table) -> Markup {
    let metrics = table.metrics();
    html! {
        h3 { (heading(&table.place)) }
        div.wide { table {
            tr { th { "server" } @for metric in &metrics { th.number { (head(*metric)) } } }
            @for (place, row) in table.rows.iter().enumerate() {
                tr { td { (swatch(place)) (row.server) } (cells(row, &metrics)) }
            }
        } }
        ul.notes { @for row in &table.rows { @for note in notes_of(row) { li { (note) } } } }
    }
}

fn cells(row: &Row, metrics: &[Metric]) -> Markup {
    html! {
        @match &row.standing {
            Standing::Absent => td.absent colspan=(metrics.len().max(1)) { "not installed" },
            Standing::Failed(why) => td.failed colspan=(metrics.len().max(1)) { "failed: " (why) },
            Standing::Figures(figures) => {
                @for metric in metrics { td.number { (figure(figures, *metric)) } }
            }
        }
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
