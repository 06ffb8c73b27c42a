//! Plots as SVG and PNG.
//!
//! ```text
//! title
//! ● one  ■ other                         legend, in as many lines as it needs
//! unit
//!   ┤----------------
//!   ┤----------------   grid lines
//!   └─┬──────┬─────
//!     1      10         ticks
//!       title of the horizontal axis
//! ```

use super::axis::Scale;
use super::figure::{Figure, Point, Series};
use super::style::{self, GRID, INK, MUTED, PAPER};
use crate::Error;
use epaint_default_fonts::UBUNTU_LIGHT;
use plotters::backend::{BitMapBackend, DrawingBackend, SVGBackend};
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Polygon, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, IntoFont, RGBColor, TextStyle, register_font};
use std::fmt::Write;
use std::path::Path;

/// Width and height of a plot in pixels.
const SIZE: (i32, i32) = (760, 450);
const LEFT: i32 = 94;
const RIGHT: i32 = 16;
const MARGIN: i32 = 16;
const BOTTOM: i32 = 60;
const LEGEND_TOP: i32 = 46;
const LEGEND_LINE: i32 = 22;
/// Height in pixels of the space for the unit, which is between the legend and the upper end of the
/// vertical axis.
const UNIT_SPACE: i32 = 34;
/// Text sizes. The layout of the legend measures widths in the built-in font (Ubuntu Light,
/// registered as `FONT`) and multiplies them by `WIDER`, because the letters of a browser's
/// sans-serif font may be wider.
const TITLE: i32 = 23;
const BODY: i32 = 19;
const WIDER: f64 = 1.25;
const FONT: &str = "sans-serif";
/// Maximum horizontal distance in pixels between the points of adjacent servers at a tick.
const APART: f64 = 14.0;

/// A plot as SVG.
#[derive(Clone, Debug)]
pub(crate) struct Drawing {
    /// The scale of the vertical axis.
    pub(crate) scale: Scale,
    svg: String,
}

impl Drawing {
    /// Draws a plot.
    ///
    /// # Errors
    /// The plot cannot be drawn.
    pub(crate) fn svg(figure: &Figure) -> Result<Self, Error> {
        let mut svg = String::new();
        let size = (SIZE.0.unsigned_abs(), SIZE.1.unsigned_abs());
        let spots = {
            let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            let spots = Canvas::new(&area, figure, 1).and_then(|canvas| canvas.draw());
            spots.map_err(failed)?
        };
        let mut hover = String::new();
        for (x, y, tip) in spots {
            let tip = maud::html! { (tip) }.into_string();
            let spot = r#"<circle class="spot" fill="transparent""#;
            // Writing to a string cannot fail.
            let _ =
                writeln!(hover, r#"{spot} cx="{x}" cy="{y}" r="9"><title>{tip}</title></circle>"#);
        }
        let end = svg.rfind("</svg>").unwrap_or(svg.len());
        svg.insert_str(end, &hover);
        Ok(Self { scale: figure.scale, svg })
    }

    /// Returns the text of an SVG file, with a style for dark mode.
    pub(crate) fn file(&self) -> String {
        let style = format!("<style>{}</style>", style::DARK);
        let after = self.svg.find('>').map_or(0, |end| end + 1);
        format!("{}{style}{}", &self.svg[..after], &self.svg[after..])
    }

    /// Returns the SVG element for an HTML page, without the namespace attribute.
    pub(crate) fn inline(&self) -> String {
        self.svg.replacen(r#" xmlns="http://www.w3.org/2000/svg""#, "", 1)
    }
}

/// Draws a plot as a PNG file, with two pixels per pixel of the plot in each direction.
///
/// # Errors
/// The plot cannot be drawn or written.
pub(crate) fn write_png(figure: &Figure, path: &Path) -> Result<(), Error> {
    let size = (SIZE.0.unsigned_abs() * 2, SIZE.1.unsigned_abs() * 2);
    let area = BitMapBackend::new(path, size).into_drawing_area();
    Canvas::new(&area, figure, 2).and_then(|canvas| canvas.draw()).map_err(failed)?;
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Plot(error.to_string())
}

type DrawResult<B, T = ()> = Result<T, DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;
/// A point: its position in pixels of the image, and its tooltip.
type Spot = (i32, i32, String);

struct Canvas<'c, B: DrawingBackend> {
    area: &'c DrawingArea<B, Shift>,
    figure: &'c Figure,
    /// Number of pixels of the image per pixel of the plot, in each direction.
    zoom: i32,
    /// Positions of the legend's entries.
    legend: Vec<(i32, i32)>,
    /// Position of the vertical axis's upper end.
    top: i32,
}

impl<'c, B: DrawingBackend> Canvas<'c, B> {
    fn new(area: &'c DrawingArea<B, Shift>, figure: &'c Figure, zoom: i32) -> DrawResult<B, Self> {
        // Registering the built-in font cannot fail.
        let _ = register_font(FONT, FontStyle::Normal, UBUNTU_LIGHT);
        let mut canvas = Self { area, figure, zoom, legend: Vec::new(), top: 0 };
        canvas.lay_out_legend()?;
        Ok(canvas)
    }

    fn lay_out_legend(&mut self) -> DrawResult<B> {
        let (mut x, mut y) = (MARGIN, LEGEND_TOP);
        for words in self.legend_words() {
            let style = self.text_style(BODY, INK);
            let (width, _) = self.area.estimate_text_size(&words, &style)?;
            let width = pixels(f64::from(width) * WIDER) / self.zoom + 34;
            if x > MARGIN && x + width > SIZE.0 - RIGHT {
                (x, y) = (MARGIN, y + LEGEND_LINE);
            }
            self.legend.push((x, y));
            x += width;
        }
        self.top = y + LEGEND_LINE + UNIT_SPACE;
        Ok(())
    }

    /// Returns the entries of the legend: one entry per server, then one entry with the names of
    /// all servers that are not installed.
    fn legend_words(&self) -> Vec<String> {
        let mut words: Vec<String> = self.figure.series.iter().map(|s| s.name.clone()).collect();
        if !self.figure.absent.is_empty() {
            words.push(format!("not installed: {}", self.figure.absent.join(", ")));
        }
        words
    }

    fn draw(&self) -> DrawResult<B, Vec<Spot>> {
        self.area.fill(&PAPER)?;
        self.text(&self.figure.title, (MARGIN, 12), TITLE, INK, (HPos::Left, VPos::Top))?;
        self.draw_legend()?;
        self.draw_vertical_axis()?;
        self.draw_horizontal_axis()?;
        let mut spots = Vec::new();
        for number in 0..self.figure.series.len() {
            spots.extend(self.draw_series(number)?);
        }
        self.area.present()?;
        Ok(spots)
    }

    fn draw_legend(&self) -> DrawResult<B> {
        for (number, (words, (x, y))) in self.legend_words().iter().zip(&self.legend).enumerate() {
            let (colour, at) = match self.figure.series.get(number) {
                Some(series) => {
                    self.marker(series, (*x + 6, *y))?;
                    (INK, (*x + 16, *y))
                }
                None => (MUTED, (*x, *y)),
            };
            self.text(words, at, BODY, colour, (HPos::Left, VPos::Center))?;
        }
        Ok(())
    }

    fn draw_vertical_axis(&self) -> DrawResult<B> {
        let figure = self.figure;
        let unit = format!("{}, {} scale", figure.unit.name(), figure.scale.name());
        self.text(&unit, (MARGIN, self.top - 24), BODY, MUTED, (HPos::Left, VPos::Center))?;
        for &tick in &figure.axis.ticks {
            let y = self.y(tick);
            self.line(&[(LEFT, y), (SIZE.0 - RIGHT, y)], GRID, 1)?;
            let number = figure.unit.number(tick);
            self.text(&number, (LEFT - 8, y), BODY, MUTED, (HPos::Right, VPos::Center))?;
        }
        Ok(())
    }

    fn draw_horizontal_axis(&self) -> DrawResult<B> {
        let bottom = SIZE.1 - BOTTOM;
        self.line(&[(LEFT, bottom), (SIZE.0 - RIGHT, bottom)], MUTED, 1)?;
        let below = (HPos::Center, VPos::Top);
        for (number, words) in self.figure.ticks.iter().enumerate() {
            let x = pixels(self.middle(number));
            self.line(&[(x, bottom), (x, bottom + 5)], MUTED, 1)?;
            self.text(words, (x, bottom + 9), BODY, MUTED, below)?;
        }
        let middle = i32::midpoint(LEFT, SIZE.0 - RIGHT);
        self.text(self.figure.varies, (middle, SIZE.1 - 24), BODY, INK, below)
    }

    fn draw_series(&self, number: usize) -> DrawResult<B, Vec<Spot>> {
        let series = &self.figure.series[number];
        let colour = style::server(series.place);
        let xs: Vec<i32> = (0..series.points.len()).map(|tick| self.x(tick, number)).collect();
        if self.figure.joined {
            for run in joined(&series.points) {
                let of = |tick: usize| Some((xs[tick], self.y(series.points[tick].spread?.median)));
                let path: Vec<(i32, i32)> = run.filter_map(of).collect();
                self.line(&path, colour, 2)?;
            }
        }
        let mut spots = Vec::new();
        for (x, point) in xs.into_iter().zip(&series.points) {
            let y = match point.spread {
                Some(spread) => {
                    self.whisker(x, self.y(spread.min), self.y(spread.max), colour)?;
                    let y = self.y(spread.median);
                    self.marker(series, (x, y))?;
                    if point.disturbed {
                        let ring = INK.stroke_width(self.zoom.unsigned_abs());
                        self.area.draw(&Circle::new(self.zoomed((x, y)), 9 * self.zoom, ring))?;
                    }
                    if point.failed {
                        self.cross((x, y), INK)?;
                    }
                    y
                }
                None => {
                    let y = SIZE.1 - BOTTOM - 8;
                    self.cross((x, y), colour)?;
                    y
                }
            };
            spots.push((x * self.zoom, y * self.zoom, point.tip.clone()));
        }
        Ok(spots)
    }

    /// Draws a vertical bar from the minimum to the maximum.
    fn whisker(&self, x: i32, least: i32, most: i32, colour: RGBColor) -> DrawResult<B> {
        self.line(&[(x, least), (x, most)], colour, 1)?;
        self.line(&[(x - 4, least), (x + 4, least)], colour, 1)?;
        self.line(&[(x - 4, most), (x + 4, most)], colour, 1)
    }

    /// Draws a cross. The cross is over the server's point if only some of the runs failed, and at
    /// the bottom of the plot if the server has no result.
    fn cross(&self, (x, y): (i32, i32), colour: RGBColor) -> DrawResult<B> {
        self.line(&[(x - 5, y - 5), (x + 5, y + 5)], colour, 2)?;
        self.line(&[(x - 5, y + 5), (x + 5, y - 5)], colour, 2)
    }

    /// Draws a server's marker. Markers differ in shape and colour: shapes repeat after five
    /// servers, colours after nine.
    fn marker(&self, series: &Series, (x, y): (i32, i32)) -> DrawResult<B> {
        let style = style::server(series.place).filled();
        let corners: &[(i32, i32)] = match series.place % 5 {
            0 => return self.area.draw(&Circle::new(self.zoomed((x, y)), 5 * self.zoom, style)),
            1 => &[(-5, -5), (5, -5), (5, 5), (-5, 5)],
            2 => &[(0, -6), (6, 5), (-6, 5)],
            3 => &[(0, 6), (6, -5), (-6, -5)],
            _ => &[(0, -7), (7, 0), (0, 7), (-7, 0)],
        };
        let corners: Vec<_> =
            corners.iter().map(|(dx, dy)| self.zoomed((x + dx, y + dy))).collect();
        self.area.draw(&Polygon::new(corners, style))
    }

    fn line(&self, points: &[(i32, i32)], colour: RGBColor, width: u32) -> DrawResult<B> {
        let points: Vec<_> = points.iter().map(|point| self.zoomed(*point)).collect();
        let style = colour.stroke_width(width * self.zoom.unsigned_abs());
        self.area.draw(&PathElement::new(points, style))
    }

    fn text(
        &self,
        words: &str,
        at: (i32, i32),
        size: i32,
        colour: RGBColor,
        (horizontal, vertical): (HPos, VPos),
    ) -> DrawResult<B> {
        let style = self.text_style(size, colour).pos(Pos::new(horizontal, vertical));
        self.area.draw(&Text::new(words, self.zoomed(at), style))
    }

    fn text_style(&self, size: i32, colour: RGBColor) -> TextStyle<'static> {
        (FONT, size * self.zoom).into_font().color(&colour)
    }

    fn zoomed(&self, (x, y): (i32, i32)) -> (i32, i32) {
        (x * self.zoom, y * self.zoom)
    }

    fn y(&self, value: f64) -> i32 {
        let bottom = SIZE.1 - BOTTOM;
        bottom - pixels(self.figure.axis.place(value) * f64::from(bottom - self.top))
    }

    fn width(&self) -> f64 {
        f64::from(SIZE.0 - RIGHT - LEFT) / self.figure.ticks.len() as f64
    }

    fn middle(&self, tick: usize) -> f64 {
        f64::from(LEFT) + self.width() * (tick as f64 + 0.5)
    }

    /// Returns the horizontal position of a server's point. The points of different servers at the
    /// same tick are side by side.
    fn x(&self, tick: usize, series: usize) -> i32 {
        let count = self.figure.series.len() as f64;
        let apart = APART.min(0.7 * self.width() / count);
        pixels(self.middle(tick) + (series as f64 - (count - 1.0) / 2.0) * apart)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "places within a plot")]
fn pixels(value: f64) -> i32 {
    value.round() as i32
}

/// Returns the ranges of points that a line connects: each has at least two adjacent points with
/// values.
fn joined(points: &[Point]) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for (number, _) in points.iter().enumerate().filter(|(_, point)| point.spread.is_some()) {
        match runs.last_mut() {
            Some(run) if run.end == number => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs.retain(|run| run.len() > 1);
    runs
}
