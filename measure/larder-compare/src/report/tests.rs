//! Tests with the report of a fictional comparison.

use super::contents::Report;
use crate::example;
use std::path::Path;
use tempfile::tempdir;

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
#[ignore = "long tier: draws all plots"]
fn report_files_contain_the_results() {
    let folder = tempdir().unwrap();
    let setup = example::setup();
    Report::of(&setup, &example::records(&setup)).write(folder.path()).unwrap();
    plots_are_files_too(&folder.path().join("plots"));
    let html = read(folder.path(), "report.html");
    for said in [
        "<title>Caches &amp; &lt;friends&gt;</title>",
        "Abacus, 2 cores, 4.0 GiB, Linux 0.1",
        "servers on cores 0, load on cores 1",
        "memcached 1.6.18",
        "not installed: absent",
        "failed: died &lt;early&gt;",
        "flaky: 1 of 3 runs failed: died in run 2",
        "<li>Throughput: larder is best at 8 of 8 places.</li>",
        "<li>32 of 96 measurements failed, of dead, flaky.</li>",
        "<li>8 of 96 measurements are disturbed: ",
        "<li>Not installed: absent.</li>",
        "<li>Servers with 2 threads have only 1 core: ",
        "The servers' 2 threads share 1 core.",
        "<a href=\"#table-0\">mixed · SET · 1 thread · pipeline 1</a>",
        "<h3 id=\"table-0\">mixed · SET · 1 thread · pipeline 1</h3>",
        "Latency by percentile · mixed · GET · 2 threads · pipeline 10",
        "Rate over time · mixed · GET · 2 threads · pipeline 10",
        "1 of 3 runs disturbed",
        "requests/s, linear scale",
        "µs, logarithmic scale",
        "Threads of the server",
        "Pipeline (requests under way on a connection)",
        "--ratio 0:1 --pipeline {pipeline}",
        "2.00 × baseline",
        "prefers-color-scheme: dark",
    ] {
        assert!(html.contains(said), "{said}");
    }
    assert!(
        !html.contains("http://") && !html.contains("https://"),
        "the report has no external resources"
    );
    assert!(!html.contains("<early>"), "text from servers is escaped");

    let markdown = read(folder.path(), "results.md");
    assert!(markdown.contains("## mixed · GET · 2 threads · pipeline 10\n"));
    let summary = markdown.find("## Summary\n\n- Throughput: ").unwrap();
    assert!(summary < markdown.find("## Setup").unwrap(), "the summary comes first");
    assert!(markdown.contains("| absent | not installed |"));
    assert!(markdown.contains("| memcached | 474 k (427 k–522 k) 1.00× |"), "{markdown}");

    let json: serde_json::Value =
        serde_json::from_str(&read(folder.path(), "results.json")).unwrap();
    assert_eq!(json["setup"]["machine"]["cpu"], "Abacus");
    assert_eq!(json["setup"]["suite"]["runs"], 3);
    assert_eq!(json["cells"].as_array().unwrap().len(), 4 * 2 * 2 * 2 * 3);
    assert_eq!(json["summary"]["tables"][0]["rows"][4]["standing"], "absent");
    let ratios = &json["summary"]["tables"][0]["rows"][1]["standing"]["figures"]["ratios"];
    assert_eq!(ratios["throughput"], 2.0);
}

#[test]
fn the_csv_file_has_a_line_for_each_cell() {
    let setup = example::setup();
    let text = super::csv::csv(&Report::of(&setup, &example::records(&setup)));
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let head = reader.headers().unwrap().clone();
    let column = |name: &str| head.iter().position(|head| head == name).unwrap();
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 96);
    let disturbed = rows.iter().filter(|row| &row[column("disturbed")] == "yes");
    assert_eq!(disturbed.count(), 8);
    let dead = rows.iter().find(|row| &row[column("server")] == "dead").unwrap();
    assert_eq!(&dead[column("failed")], "died <early>");
    assert_eq!(&dead[column("throughput_per_second")], "");
    let first = &rows[0];
    assert_eq!(&first[column("version")], "memcached 1.6.18");
    assert_eq!(&first[column("p99.9_micros")], "2222.2222");
}

/// Checks the files of the plots. Each of 11 compared metrics has plots on 2 scales for each of 2
/// phases: by pipeline for each of 2 numbers of threads, and by threads for each of 2 pipelines.
fn plots_are_files_too(plots: &Path) {
    let names: Vec<String> = std::fs::read_dir(plots)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let of = |end: &str| names.iter().filter(|name| name.ends_with(end)).count();
    // In addition, there are plots of the latency by percentile and of the rate over time for 8
    // combinations.
    let figures = 11 * (2 * 2 + 2 * 2) * 2 + 2 * 8;
    assert_eq!((of(".svg"), of(".png")), (figures, figures));
    assert!(names.contains(&"mixed-get-1-thread-p99.99-logarithmic.svg".to_owned()), "{names:?}");
    let svg = read(plots, "mixed-set-pipeline-10-throughput-linear.svg");
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains("<title>larder: "), "points have tooltips");
}
