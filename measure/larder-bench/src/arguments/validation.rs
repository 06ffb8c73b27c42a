//! Converts options to [`Settings`], and checks options that depend on each other.

use super::custom_options::CommandOptions;
use super::error::{ArgumentError, wrong};
use super::values::Requests;
use super::{Arguments, key_spaces};
use crate::load::wire::custom::objection;
use crate::settings::{
    Arrivals, CustomCommand, KeySpace, Keys, Pattern, Settings, Steps, Stop, TraceReplay,
};

impl Arguments {
    /// Returns the validated settings of these options.
    ///
    /// # Errors
    /// An option's value cannot be used, or the server's name does not resolve.
    pub fn settings(&self) -> Result<Settings, ArgumentError> {
        if self.key_minimum > self.key_maximum {
            return Err(wrong(
                "key-minimum",
                self.key_minimum,
                "at most the value of --key-maximum",
            ));
        }
        if self.key_maximum - self.key_minimum == u64::MAX {
            return Err(wrong("key-maximum", self.key_maximum, "a range of fewer than 2^64 keys"));
        }
        if self.multi_get == 0 {
            return Err(wrong("multi-get", 0, "at least one key"));
        }
        let percentile = self.print_percentiles.iter().find(|p| !(0.0..=100.0).contains(*p));
        if let Some(percentile) = percentile {
            return Err(wrong("print-percentiles", percentile, "percentiles between 0 and 100"));
        }
        let rate = self.rate()?;
        let arrivals = self.arrivals(rate)?;
        let parts = self.reconnect_interval.filter(|n| !n.is_multiple_of(self.pipeline as u64));
        if let (Some(interval), true) = (parts, rate.is_some() || self.find_rate.is_some()) {
            // An open loop schedules full pipelines, and a connection cannot reconnect in the
            // middle of a pipeline.
            let expected = "a multiple of --pipeline in an open loop";
            return Err(wrong("reconnect-interval", interval, expected));
        }
        let keys = self.keys()?;
        let servers = self.servers()?;
        self.check_number_of_servers(&servers)?;
        Ok(Settings {
            servers,
            distribution: self.distribution.unwrap_or_default(),
            protocol: self.protocol,
            login: self.login()?,
            tls: self.tls.then(|| self.tls_settings()),
            client_stats: self.client_stats.is_some(),
            reconnect_interval: self.reconnect_interval,
            reconnect_on_error: self.reconnect_on_error,
            steps: self.steps()?,
            threads: self.threads,
            clients: self.clients,
            pipeline: self.pipeline,
            // An open loop over a trace schedules requests individually, so its pipeline is
            // sliding.
            sliding: self.sliding || arrivals == Arrivals::Bursts || self.speed.is_some(),
            ratio: self.ratio,
            multi_get: self.multi_get,
            commands: self.commands()?,
            stop: self.stop(&keys),
            key_spaces: self.key_spaces()?,
            trace: self.trace()?,
            keys,
            data_size: self.data_size()?,
            random_data: self.random_data,
            expiry: self.expiry_range,
            rate,
            arrivals,
            timeout: self.timeout,
            connection_timeout: self.connection_timeout.0,
            fill: self.fill,
            verify: self.verify,
            seed: if self.randomize { rand::random() } else { self.seed },
            distinct_client_seed: self.distinct_client_seed,
        })
    }

    fn key_spaces(&self) -> Result<Vec<KeySpace>, ArgumentError> {
        let Some(file) = &self.key_spaces else { return Ok(Vec::new()) };
        if self.requests == Some(Requests::AllKeys) {
            return Err(wrong("requests", "allkeys", "a number with --key-spaces"));
        }
        key_spaces::read(file, self).map_err(|why| {
            let file = file.display().to_string();
            ArgumentError::KeySpaces { file, why }
        })
    }

    fn trace(&self) -> Result<Option<TraceReplay>, ArgumentError> {
        let Some(file) = self.trace.clone() else { return Ok(None) };
        let requests = match self.requests {
            Some(Requests::AllKeys) => {
                return Err(wrong("requests", "allkeys", "a number with --trace"));
            }
            Some(Requests::Count(count)) => Some(count),
            None => None,
        };
        Ok(Some(TraceReplay { file, speed: self.speed, on_miss: self.on_miss, requests }))
    }

    fn steps(&self) -> Result<Option<Steps>, ArgumentError> {
        let (Some(start), Some(step), Some(every)) =
            (self.clients_start, self.clients_step, self.step_duration)
        else {
            return Ok(None);
        };
        if start >= self.clients {
            return Err(wrong("clients-start", start, "less than the value of --clients"));
        }
        Ok(Some(Steps { start, step, every }))
    }

    fn commands(&self) -> Result<Vec<CustomCommand>, ArgumentError> {
        let command = |options: &CommandOptions| {
            let CommandOptions { line, ratio, pattern } = options;
            if let Some(expected) = objection(self.protocol, line) {
                return Err(wrong("command", line, expected));
            }
            let expected = "one of R Z G S P";
            let pattern = self
                .pattern(pattern)
                .ok_or_else(|| wrong("command-key-pattern", pattern, expected))?;
            Ok(CustomCommand { line: line.clone(), ratio: *ratio, pattern })
        };
        self.commands.0.iter().map(command).collect()
    }

    fn stop(&self, keys: &Keys) -> Stop {
        match (self.test_time, self.requests) {
            (Some(time), _) => Stop::After(time),
            (None, _) if self.trace.is_some() => Stop::EndOfTrace,
            (None, None) => Stop::Requests(REQUESTS_DEFAULT),
            (None, Some(Requests::Count(count))) => Stop::Requests(count),
            (None, Some(Requests::AllKeys)) => {
                let clients = (self.threads * self.clients) as u64;
                let partitioned = keys.set == Pattern::Partitioned;
                Stop::Requests(keys.count().div_ceil(if partitioned { clients } else { 1 }))
            }
        }
    }

    fn arrivals(&self, rate: Option<u64>) -> Result<Arrivals, ArgumentError> {
        let usual = match self.rate_limiting {
            Some(_) => Arrivals::Bursts,
            None => Arrivals::Fixed,
        };
        let arrivals = self.arrivals.unwrap_or(usual);
        match arrivals {
            Arrivals::Poisson if rate.is_none() && self.find_rate.is_none() => Err(wrong(
                "arrivals",
                "poisson",
                "an open loop: --rate, --rate-limiting or --find-rate",
            )),
            Arrivals::Bursts if self.rate_limiting.is_none() => {
                Err(wrong("arrivals", "bursts", "--rate-limiting"))
            }
            Arrivals::Fixed
                if self.arrivals.is_some() && rate.is_none() && self.find_rate.is_none() =>
            {
                Err(wrong(
                    "arrivals",
                    "fixed",
                    "an open loop: --rate, --rate-limiting or --find-rate",
                ))
            }
            Arrivals::Fixed | Arrivals::Poisson if self.sliding && rate.is_some() => {
                Err(wrong("arrivals", "fixed or poisson", "no --sliding"))
            }
            _ => Ok(arrivals),
        }
    }

    fn rate(&self) -> Result<Option<u64>, ArgumentError> {
        let clients = (self.threads * self.clients) as u64;
        let rate = self.rate.or(self.rate_limiting.map(|each| each.saturating_mul(clients)));
        if rate == Some(0) {
            return Err(wrong("rate", 0, "at least one request per second"));
        }
        Ok(rate)
    }
}

/// Default of `--requests`.
const REQUESTS_DEFAULT: u64 = 10_000;
