"""Nearest training sentences by edit distance and by TF-IDF similarity; small corpus BLEU."""

import math
from collections import Counter, defaultdict


def edit_distance(left, right, limit):
    """Token-level Levenshtein distance, or `limit` if it is at least that."""
    if abs(len(left) - len(right)) >= limit:
        return limit
    previous = list(range(len(right) + 1))
    for row, word in enumerate(left, 1):
        current = [row]
        for column, other in enumerate(right, 1):
            cost = previous[column - 1] + (word != other)
            current.append(min(cost, previous[column] + 1, current[-1] + 1))
        if min(current) >= limit:
            return limit
        previous = current
    return min(previous[-1], limit)


class Nearest:
    """Finds the training sentence nearest to a given one; ties go to the earlier sentence."""

    def __init__(self, sentences):
        self.sentences = sentences
        self.containing = defaultdict(list)
        for index, words in enumerate(sentences):
            for word, times in sorted(Counter(words).items()):
                self.containing[word].append((index, times))

    def by_edit_distance(self, words):
        """(index, distance) of the nearest sentence."""
        common = [0] * len(self.sentences)
        for word, times in sorted(Counter(words).items()):
            for index, other in self.containing.get(word, ()):
                common[index] += min(times, other)
        # The longer length less the shared words bounds the distance from below.
        bounds = sorted(
            (max(len(words), len(self.sentences[index])) - shared, index)
            for index, shared in enumerate(common)
        )
        best, distance = None, math.inf
        for bound, index in bounds:
            if bound > distance:
                break
            found = edit_distance(words, self.sentences[index], distance + 1)
            if found < distance or (found == distance and index < best):
                best, distance = index, found
        return best, distance


def ngrams(words, largest):
    """Counts of all n-grams of 1 to `largest` words."""
    return Counter(
        tuple(words[start:start + size])
        for size in range(1, largest + 1)
        for start in range(len(words) - size + 1)
    )


class TfIdf:
    """Cosine similarity of TF-IDF vectors of 1- to 3-grams."""

    def __init__(self, sentences):
        counts = [ngrams(words, 3) for words in sentences]
        documents = Counter(gram for grams in counts for gram in grams)
        self.weights = {g: math.log(len(sentences) / n) for g, n in documents.items()}
        self.postings = defaultdict(list)
        for index, grams in enumerate(counts):
            vector = {gram: times * self.weights[gram] for gram, times in grams.items()}
            norm = math.sqrt(sum(value * value for value in vector.values())) or 1.0
            for gram, value in vector.items():
                self.postings[gram].append((index, value / norm))

    def nearest(self, words):
        """Index of the most similar sentence."""
        scores = defaultdict(float)
        for gram, times in ngrams(words, 3).items():
            for index, value in self.postings.get(gram, ()):
                scores[index] += times * self.weights[gram] * value
        return max(scores, key=lambda index: (scores[index], -index)) if scores else 0


def corpus_bleu(hypotheses, references):
    """BLEU (Papineni et al. 2002) of token lists: 4-grams, no smoothing, 0 to 100."""
    matched, total = [0] * 4, [0] * 4
    for hypothesis, reference in zip(hypotheses, references):
        wanted = ngrams(reference, 4)
        for gram, times in ngrams(hypothesis, 4).items():
            matched[len(gram) - 1] += min(times, wanted[gram])
            total[len(gram) - 1] += times
    if 0 in matched:
        return 0.0
    hypothesis_length, reference_length = sum(map(len, hypotheses)), sum(map(len, references))
    brevity = min(0.0, 1 - reference_length / hypothesis_length)
    precision = sum(math.log(m / t) for m, t in zip(matched, total)) / 4
    return 100 * math.exp(brevity + precision)
