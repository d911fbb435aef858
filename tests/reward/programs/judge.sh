#!/bin/bash
# A tenth of the number of characters of each answer, as bc writes it: .5
while IFS= read -r line; do
  answer=$(sed -E 's/.*"completion":"([^"]*)".*/\1/' <<< "$line")
  awk -v n="${#answer}" 'BEGIN { text = sprintf("%.1f", n / 10); sub(/^0/, "", text); print text }'
done
