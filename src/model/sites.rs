//! The two stacks of layers, and the numbers of the places that have dropout.

/// The stack a layer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// Of the source.
    Encoder,
    /// Of the target.
    Decoder,
}

impl Stack {
    /// The first part of its parameters' names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Encoder => "encoder",
            Self::Decoder => "decoder",
        }
    }

    /// Number of a dropout site of a layer. It is part of the key of random numbers, so it must never change: resumed
    /// runs depend on it. Distinct for up to 10,000 layers.
    pub fn site(self, layer: usize, site: DropoutSite) -> u64 {
        (self as u64 + 1) * 1_000_000 + layer as u64 * 100 + site as u64
    }
}

/// Where a layer has dropout. The numbers are below 100, and part of [`Stack::site`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropoutSite {
    /// The weights of self-attention.
    SelfAttentionWeights = 0,
    /// The output of self-attention.
    SelfAttentionOutput = 1,
    /// The weights of cross-attention.
    CrossAttentionWeights = 2,
    /// The output of cross-attention.
    CrossAttentionOutput = 3,
    /// The hidden layer of the feed-forward sub-layer.
    FeedForwardHidden = 4,
    /// The output of the feed-forward sub-layer.
    FeedForwardOutput = 5,
    /// The sum of embedding and position; of layer 0.
    Embedding = 99,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs that began with an older program draw the same masks.
    #[test]
    fn dropout_sites_keep_their_numbers() {
        use DropoutSite::*;
        for (site, number) in [
            (SelfAttentionWeights, 0),
            (SelfAttentionOutput, 1),
            (CrossAttentionWeights, 2),
            (CrossAttentionOutput, 3),
            (FeedForwardHidden, 4),
            (FeedForwardOutput, 5),
            (Embedding, 99),
        ] {
            assert_eq!(Stack::Encoder.site(0, site), 1_000_000 + number);
            assert_eq!(Stack::Decoder.site(3, site), 2_000_300 + number);
        }
    }
}
