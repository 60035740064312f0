/// Measurements of the same thing.
#[derive(Clone, Debug)]
pub(crate) struct Spread {
    /// In rising order.
    sorted: Vec<f64>,
}

impl Spread {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.sorted.len()
    }

    /// The middle one, or the mean of the two in the middle.
    pub(crate) fn median(&self) -> f64 {
        let (count, half) = (self.sorted.len(), self.sorted.len() / 2);
        match self.sorted.get(half) {
            None => f64::NAN,
            Some(middle) if count % 2 == 1 => *middle,
            Some(above) => f64::midpoint(self.sorted[half - 1], *above),
        }
    }

    /// The smallest that at least this share of them does not exceed: 0.99 leaves one in a hundred above.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let rank = (share * self.sorted.len() as f64).ceil() as usize;
        self.sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }

    /// The smallest.
    pub(crate) fn least(&self) -> f64 {
        self.sorted.first().copied().unwrap_or(f64::NAN)
    }

    /// The largest.
    pub(crate) fn most(&self) -> f64 {
        self.sorted.last().copied().unwrap_or(f64::NAN)
    }
}

impl FromIterator<f64> for Spread {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Self { sorted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_measurements() {
        let spread: Spread = (1..=200).map(f64::from).collect();
        assert_eq!([0.5, 0.99, 1.0].map(|share| spread.quantile(share)), [100.0, 198.0, 200.0]);
        assert_eq!([7.0].into_iter().collect::<Spread>().quantile(0.5), 7.0);
        assert!([].into_iter().collect::<Spread>().quantile(0.5).is_nan());
    }

    #[test]
    fn the_median_is_in_the_middle() {
        let spread = |values: &[f64]| values.iter().copied().collect::<Spread>();
        assert_eq!(spread(&[3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert_eq!((spread(&[3.0, 1.0]).least(), spread(&[3.0, 1.0]).most()), (1.0, 3.0));
        assert!(spread(&[]).median().is_nan());
    }
}
