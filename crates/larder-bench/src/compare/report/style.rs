//! Colours and sizes of plots. What is neither a server's colour nor transparent changes in the dark.

use plotters::style::RGBColor;

/// Text.
pub(crate) const INK: RGBColor = RGBColor(0x1f, 0x23, 0x28);
/// Text beside the point.
pub(crate) const MUTED: RGBColor = RGBColor(0x59, 0x63, 0x6e);
/// Lines to read along.
pub(crate) const GRID: RGBColor = RGBColor(0xd1, 0xd9, 0xe0);
/// What is drawn on.
pub(crate) const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);

/// The same in the dark, for SVG.
pub(crate) const DARK: &str = "@media (prefers-color-scheme: dark) {\
    svg [fill=\"#1F2328\"] { fill: #e6edf3 } svg [fill=\"#59636E\"] { fill: #9198a1 }\
    svg [stroke=\"#D1D9E0\"] { stroke: #3d444d } svg [stroke=\"#59636E\"] { stroke: #9198a1 }\
    svg [fill=\"#FFFFFF\"] { fill: #0d1117 } }";

/// Servers' colours, by their place in the suite: at least 3:1 on both papers.
const SERVERS: [RGBColor; 9] = [
    RGBColor(0x2f, 0x81, 0xd6),
    RGBColor(0xd9, 0x73, 0x0d),
    RGBColor(0x2c, 0x97, 0x4b),
    RGBColor(0xd6, 0x45, 0x50),
    RGBColor(0x8a, 0x63, 0xd2),
    RGBColor(0x15, 0x90, 0x9c),
    RGBColor(0x9a, 0x6b, 0x3f),
    RGBColor(0xc7, 0x54, 0xa4),
    RGBColor(0x7d, 0x85, 0x90),
];

/// The colour of the suite's n-th server.
pub(crate) fn server(place: usize) -> RGBColor {
    SERVERS[place % SERVERS.len()]
}

/// As HTML writes it.
pub(crate) fn hex(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WCAG's relative luminance.
    fn luminance(RGBColor(red, green, blue): RGBColor) -> f64 {
        let linear = |part: u8| {
            let part = f64::from(part) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
    }

    #[test]
    fn legible_on_both_papers() {
        for paper in [PAPER, RGBColor(0x0d, 0x11, 0x17)] {
            for colour in SERVERS {
                let (one, other) = (luminance(colour) + 0.05, luminance(paper) + 0.05);
                assert!(one.max(other) / one.min(other) >= 3.0, "{colour:?} on {paper:?}");
            }
        }
    }
}
