//! Tests of the structure of the source. The crate contains only tests, and has no dependencies.
#![forbid(unsafe_code)]

#[cfg(test)]
mod circles;
#[cfg(test)]
mod imports;
#[cfg(test)]
mod layers;
#[cfg(test)]
mod sizes;
#[cfg(test)]
mod source;
#[cfg(test)]
mod unsafe_code;
#[cfg(test)]
mod wire_text;
