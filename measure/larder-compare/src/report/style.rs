//! Colours of plots. Dark mode replaces all colours except those of servers.

use plotters::style::RGBColor;

/// Colour of text.
pub(crate) const INK: RGBColor = RGBColor(0x1f, 0x23, 0x28);
/// Colour of secondary text.
pub(crate) const MUTED: RGBColor = RGBColor(0x59, 0x63, 0x6e);
/// Colour of grid lines.
pub(crate) const GRID: RGBColor = RGBColor(0xd1, 0xd9, 0xe0);
/// Background colour.
pub(crate) const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);

/// The style that replaces these colours in dark mode.
pub(crate) const DARK: &str = "@media (prefers-color-scheme: dark) {\
    svg [fill=\"#1F2328\"] { fill: #e6edf3 } svg [fill=\"#59636E\"] { fill: #9198a1 }\
    svg [stroke=\"#D1D9E0\"] { stroke: #3d444d } svg [stroke=\"#59636E\"] { stroke: #9198a1 }\
    svg [fill=\"#FFFFFF\"] { fill: #0d1117 } }";

/// Colours of servers, by index in the suite. The tenth server has the first colour again. The
/// contrast with both backgrounds is at least 3:1.
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

/// Returns the colour of the server at this index of the suite.
pub(crate) fn server(index: usize) -> RGBColor {
    SERVERS[index % SERVERS.len()]
}

/// Returns the colour in HTML notation.
pub(crate) fn hex(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes WCAG's relative luminance.
    fn luminance(RGBColor(red, green, blue): RGBColor) -> f64 {
        let linear = |part: u8| {
            let part = f64::from(part) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
    }

    #[test]
    fn colours_have_contrast_to_both_backgrounds() {
        for paper in [PAPER, RGBColor(0x0d, 0x11, 0x17)] {
            for colour in SERVERS {
                let (one, other) = (luminance(colour) + 0.05, luminance(paper) + 0.05);
                assert!(one.max(other) / one.min(other) >= 3.0, "{colour:?} on {paper:?}");
            }
        }
    }
}
