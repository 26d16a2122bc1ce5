"""What writes into regions for as long as an agent runs: feedback, repairs, figures."""
