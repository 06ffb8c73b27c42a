//! The files of `--client-stats`: one for each connection, in memtier_benchmark's format.

use crate::load::stats::client_stats::{ClientSecond, ClientStats};
use hdrhistogram::Histogram;
use std::fs::File;
use std::io::{self, BufWriter, Write};

/// Writes `PREFIX-RUN-THREAD-CONNECTION.csv` for each connection that sent requests. Runs count
/// from 1, threads and their connections from 0.
pub(crate) fn write_clients(
    prefix: &str,
    run: usize,
    clients_per_thread: usize,
    clients: &[ClientStats],
) -> io::Result<()> {
    for client in clients.iter().filter(|client| !client.seconds.is_empty()) {
        let thread = client.index / clients_per_thread;
        let number = client.index % clients_per_thread;
        let path = format!("{prefix}-{run}-{thread}-{number}.csv");
        let mut file = BufWriter::new(File::create(path)?);
        write_client(client, &mut file)?;
        file.flush()?;
    }
    Ok(())
}

/// Writes the statistics of a connection. As in memtier_benchmark, the mean latency of each second
/// is in seconds, and the latencies of the run are in milliseconds. The columns of WAIT, a Redis
/// command for replication, are always 0.
fn write_client(client: &ClientStats, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "Per-Second Benchmark Data")?;
    writeln!(
        out,
        "Second,SET Requests,SET Average Latency,SET Total Bytes,SET Total Bytes TX,SET Total Bytes \
         RX,GET Requests,GET Average Latency,GET Total Bytes,GET Total Bytes TX,GET Total Bytes \
         RX,GET Misses,GET Hits,WAIT Requests,WAIT Average Latency"
    )?;
    for (second, [set, get]) in client.seconds.iter().enumerate() {
        write!(out, "{second},")?;
        write_command(set, out)?;
        write!(out, ",")?;
        write_command(get, out)?;
        writeln!(out, ",{},{},0,0.000000", get.misses, get.hits)?;
    }
    let [set, get] = &client.latency;
    for (name, latency) in [("GET", get), ("SET", set)] {
        writeln!(out, "\nFull-Test {name} Latency\nLatency (<= msec),Percent")?;
        write_latency(latency, out)?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "shown with six digits")]
fn write_command(second: &ClientSecond, out: &mut impl Write) -> io::Result<()> {
    let ClientSecond { requests, latency, sent_bytes: sent, received_bytes: received, .. } = second;
    let mean = *latency as f64 / 1e9 / (*requests).max(1) as f64;
    write!(out, "{requests},{mean:.6},{},{sent},{received}", sent + received)
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn write_latency(latency: &Histogram<u64>, out: &mut impl Write) -> io::Result<()> {
    for value in latency.iter_quantiles(10) {
        let millis = value.value_iterated_to() as f64 / 1e6;
        writeln!(out, "{millis:8.3},{:.3}", value.quantile_iterated_to() * 100.0)?;
    }
    Ok(())
}
